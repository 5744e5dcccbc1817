// What scheduled routines are given, and what they may do with it.
#include <array>
#include <cstdint>
#include <utility>

#include "trace_test.h"

namespace amanda {
namespace {

class ActionTest : public TraceTest {
 protected:
  /// Tool "a" with one routine, scheduled on every operator.
  void before(std::function<void(Values&)> routine, Positions inputs = {}) {
    tool("a").does([=](OpContext& op) { op.insert_before_op(routine, {.inputs = inputs}); });
    apply({tool("a")});
  }
  void after(std::function<void(Values&)> routine, Positions outputs = {}) {
    tool("a").does([=](OpContext& op) { op.insert_after_op(routine, {.outputs = outputs}); });
    apply({tool("a")});
  }
  std::string error_of_call(const std::string& op) {
    return error_of([&] { call(op); });
  }
  std::string refusal_of_call(const std::string& op) {
    return error_of<std::invalid_argument>([&] { call(op); });
  }
  void note_inputs(const Values& values) {
    for (size_t i = 0; i < values.size(); ++i) note(std::to_string(values.position(i)));
  }
  const Operand tens = Array{10, 10};
};

TEST_F(ActionTest, WithoutASelectionARoutineGetsAllPositions) {
  before([&](Values& values) { note_inputs(values); });
  call("linear");
  EXPECT_EQ(trace(), "0 1 2 linear matmul add");
}

TEST_F(ActionTest, PositionsAreSelectedByIndexAndName) {
  before([&](Values& values) { note_inputs(values); }, {2, "weight"});
  call("linear");
  EXPECT_EQ(trace(), "2 1 linear matmul add");
}

TEST_F(ActionTest, NoPositionsMayBeSelected) {
  before([&](Values& values) { note("size=" + std::to_string(values.size())); }, Positions::none());
  call("add");
  EXPECT_EQ(trace(), "size=0 add");
}

TEST_F(ActionTest, APositionThatIsNotThereIsRefusedAtAnalysis) {
  before([](Values&) {}, {2});
  EXPECT_EQ(refusal_of_call("add"),
            "[context] a: insert_before_op on ref::add: there is no position 2; it has 0 (a), 1 (b)");
}

TEST_F(ActionTest, OperandsThatAMethodDoesNotHaveAreRefused) {
  tool("a").does([](OpContext& op) { op.insert_before_op([](Values&) {}, {.outputs = {0}}); });
  apply({tool("a")});
  EXPECT_EQ(refusal_of_call("add"),
            "[context] a: insert_before_op on ref::add: there are no outputs here; select inputs");
}

TEST_F(ActionTest, AnEmptySelectionOfOperandsThatAMethodDoesNotHaveIsRefusedToo) {
  tool("a").does([](OpContext& op) { op.replace_op([](Values&) {}, {.grad_outputs = Positions::none()}); });
  apply({tool("a")});
  EXPECT_EQ(refusal_of_call("add"),
            "[context] a: replace_op on ref::add: there are no grad_outputs here; select inputs");
}

TEST_F(ActionTest, AReplacementIsAlwaysDifferentiable) {
  tool("a").does([](OpContext& op) { op.replace_op([](Values&) {}, {.differentiable = true}); });
  apply({tool("a")});
  EXPECT_EQ(refusal_of_call("add"),
            "[context] a: replace_op on ref::add: a replacement is always differentiable; leave .differentiable out");
}

TEST_F(ActionTest, ANegativePositionIsRefused) {
  before([](Values&) {}, {-1});
  EXPECT_EQ(refusal_of_call("add"),
            "[context] a: insert_before_op on ref::add: there is no position -1; it has 0 (a), 1 (b)");
}

TEST_F(ActionTest, ANameThatIsNotThereIsRefusedAtAnalysis) {
  after([](Values&) {}, {"third"});
  EXPECT_EQ(refusal_of_call("split"),
            "[context] a: insert_after_op on ref::split: there is no 'third'; it has 0 (first), 1 (second)");
}

TEST_F(ActionTest, AnInputMayBeReplacedByAnotherValue) {
  before([&](Values& values) { values.set(0, reference::value(tens)); }, {"b"});
  EXPECT_EQ(call("sub"), (Array{-9, -12}));
}

TEST_F(ActionTest, OneOfSeveralOutputsMayBeReplaced) {
  after([&](Values& values) { values.set(0, reference::value(tens)); }, {"second"});
  EXPECT_EQ(reference::call("split", {Array{1, 2}}), (Operands{Array{1}, Array{10, 10}}));
}

TEST_F(ActionTest, AListIsOnePosition) {
  const Operand list = std::vector<Array>{{1}, {2}, {3}};
  before([&](Values& values) { values.set(0, reference::value(list)); });
  EXPECT_EQ(call("concat"), (Array{1, 2, 3}));
}

TEST_F(ActionTest, EachRoutineSeesWhatTheOneBeforeItMade) {
  tool("a").does([&](OpContext& op) {
    op.insert_before_op([&](Values& values) { values.set(0, reference::value(tens)); });
    op.insert_after_op([&](Values& values) { values.set(0, reference::value(tens)); });
  });
  tool("b").does([&](OpContext& op) {
    op.insert_before_op([&](Values& values) { EXPECT_EQ(input(values), (Array{10, 10})); });
    op.insert_after_op([&](Values& values) { EXPECT_EQ(input(values), (Array{10, 10})); });
  });
  apply({tool("a"), tool("b")});
  EXPECT_EQ(call("add"), (Array{10, 10}));
}

TEST_F(ActionTest, AValueOfAnotherTypeIsRefused) {
  const Operand number = 1.0;
  before([&](Values& values) { values.set(0, reference::value(number)); }, {"b"});
  EXPECT_EQ(error_of_call("add"),
            "[action] a: a C++ routine before ref::add: input 1 (b): a number where an array is needed");
}

TEST_F(ActionTest, NothingIsRefusedWhereAValueIsNeeded) {
  after([&](Values& values) { values.set(0, {}); });
  EXPECT_EQ(error_of_call("add"),
            "[action] a: a C++ routine after ref::add: output 0 (result): nothing where an array is needed");
}

TEST_F(ActionTest, TheResultOfAViewIsEditedOnlyIfItMayStopBeingOne) {
  auto edit = [&](Values& values) { values.set(0, reference::value(tens)); };
  after(edit);
  EXPECT_EQ(error_of_call("flatten"),
            "[action] a: a C++ routine after ref::flatten: output 0 (result): its result is a view, and another value "
            "would share no data; say allow_view if that will do");
  leave();
  tool("b").does([=](OpContext& op) { op.insert_after_op(edit, {.allow_view = true}); });
  apply({tool("b")});
  EXPECT_EQ(call("flatten"), (Array{10, 10}));
}

TEST_F(ActionTest, TheOperandOfAViewIsEditedOnlyWhenTheToolDeclaredIt) {
  auto edit = [&](Values& values) { values.set(0, reference::value(tens)); };
  before(edit);
  EXPECT_EQ(error_of_call("flatten"),
            "[action] a: a C++ routine before ref::flatten: input 0 (a): the result is a view of it, and another value "
            "would share no data; say allow_view if that will do");
}

TEST_F(ActionTest, TheOperandOfAViewIsEditedOnRequest) {
  auto edit = [&](Values& values) { values.set(0, reference::value(tens)); };
  tool("a").does([=](OpContext& op) { op.insert_before_op(edit, {.allow_view = true}); });
  apply({tool("a")});
  EXPECT_EQ(call("flatten"), (Array{10, 10}));
}

TEST_F(ActionTest, MutatingAnInputRaises) {
  before([&](Values& values) { Array(input(values)).assign({0, 0}); });
  EXPECT_EQ(
      error_of_call("add"),
      "[action] a: a C++ routine before ref::add: it changed input 0 (a) in place, and that stays changed; return a "
      "new tensor instead, or call context.may_mutate() at analysis");
}

TEST_F(ActionTest, MutatingAnOutputRaises) {
  after([&](Values& values) { Array(input(values)).assign({0, 0}); });
  EXPECT_NE(error_of_call("add").find("after ref::add: it changed output 0 (result) in place"), std::string::npos);
}

TEST_F(ActionTest, MutatingInAReplacementRaises) {
  tool("a").does([&](OpContext& op) {
    op.replace_op([&](Values& values) {
      Array(input(values)).assign({0, 0});
      values.set_result(0, values[0]);
    });
  });
  apply({tool("a")});
  EXPECT_NE(error_of_call("add").find("replacing ref::add: it changed input 0 (a) in place"), std::string::npos);
}

TEST_F(ActionTest, ATensorInAListIsWatchedToo) {
  before([&](Values& values) { Array(std::get<1>(reference::operand(values[0]))[1]).assign({0, 0}); });
  EXPECT_NE(error_of_call("concat").find("it changed input 0 (arrays) in place"), std::string::npos);
}

TEST_F(ActionTest, AnAnalysisMayAllowMutation) {
  tool("a").does([&](OpContext& op) {
    op.may_mutate();
    op.insert_before_op([&](Values& values) { Array(input(values)).assign({0, 0}); });
    op.replace_op([&](Values& values) {
      Array(input(values, 1)).assign({7, 7});
      values.call_original();
    });
    op.insert_after_op([&](Values& values) { Array(input(values)).assign({input(values).data()[0], 1}); });
  });
  apply({tool("a")});
  EXPECT_EQ(call("add"), (Array{7, 1}));
}

TEST_F(ActionTest, RunDataIsSharedByAToolsRoutinesOfOneExecution) {
  struct Count {
    int runs = 0;
  };
  std::weak_ptr<int> alive;
  for (const char* name : {"a", "b"}) {
    TraceTool& each = tool(name);
    each.does([&](OpContext& op) {
      op.insert_before_op([&](Values& values) {
        ++values.run<Count>().runs;
        EXPECT_EQ(&values.run<Count>(), &values.run<Count>());
      });
      op.insert_after_op([&](Values& values) { each.say(std::to_string(++values.run<Count>().runs)); });
    });
  }
  apply({tool("a"), tool("b")});
  call("add");
  call("add");
  EXPECT_EQ(trace(), "add a2 b2 add a2 b2");
}

TEST_F(ActionTest, RunDataIsGoneWhenTheOperatorReturnsOrThrows) {
  std::weak_ptr<int> watched;
  before([&](Values& values) {
    auto& kept = values.run<std::shared_ptr<int>>();
    kept = std::make_shared<int>(1);
    watched = kept;
    call("neg");
    EXPECT_FALSE(watched.expired());
  });
  call("add");
  EXPECT_TRUE(watched.expired());
  EXPECT_THROW(reference::call("add", {Array{1}, Array{1, 2}}), std::invalid_argument);
  EXPECT_TRUE(watched.expired());
}

TEST_F(ActionTest, RunDataIsAlignedAsItsTypeAsks) {
  struct alignas(128) Wide {
    std::array<uint64_t, 20> values{};
  };
  struct Large {
    std::array<uint64_t, 1000> values{};  // more than a pool has
  };
  int seen = 0;
  before([&](Values& values) {
    ++seen;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(&values.run<Wide>()) % 128, 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(&values.local<Wide>()) % 128, 0);
    EXPECT_EQ(std::exchange(values.run<Large>().values.back(), 1), 0);
  });
  for (int i = 0; i < 50; ++i) call("add");
  EXPECT_EQ(seen, 50);
}

TEST_F(ActionTest, ARemovedActionStopsAtTheNextRun) {
  Action action;
  tool("a").does([&](OpContext& op) {
    note("a?");
    action = op.insert_before_op([&](Values&) { note("a<"); });
  });
  apply({tool("a")});
  EXPECT_TRUE(action.removed());
  call("add");
  EXPECT_FALSE(action.removed());
  action.remove();
  action.remove();
  EXPECT_TRUE(action.removed());
  call("add");
  EXPECT_EQ(trace(), "a? a< add add");
}

TEST_F(ActionTest, AnActionMayRemoveItself) {
  auto action = std::make_shared<Action>();
  tool("a").does([&](OpContext& op) {
    *action = op.insert_after_op([&](Values&) {
      note("once");
      action->remove();
    });
  });
  apply({tool("a")});
  call("add");
  call("add");
  EXPECT_EQ(trace(), "add once add");
}

TEST_F(ActionTest, RoutinesAreIsolatedUnlessTheyAskToBeDifferentiable) {
  auto mode = [&](const char* word) {
    return [this, word](Values&) {
      note(word);
      note(reference::routine_mode() == RoutineMode::kAmbient ? "ambient" : "isolated");
    };
  };
  tool("a").does([&](OpContext& op) {
    op.insert_before_op(mode("plain"));
    op.insert_before_op(mode("differentiable"), {.differentiable = true});
    op.insert_before_op(mode("plain"));
    op.insert_after_op(mode("after"), {.differentiable = true});
  });
  apply({tool("a")});
  call("add");
  EXPECT_EQ(trace(), "plain isolated differentiable ambient plain isolated add after ambient");
  EXPECT_EQ(reference::routine_mode(), std::nullopt);
}

TEST_F(ActionTest, ARoutineMayPromiseToCallNoOperator) {
  std::vector<std::optional<RoutineMode>> modes;
  const auto look = [&](Values&) { modes.push_back(reference::routine_mode()); };
  tool("a").does([&](OpContext& op) {
    op.insert_before_op(look, {.kind = RoutineKind::kObserve, .with_operators = false});
    op.insert_before_op(look);
    op.insert_after_op(look, {.kind = RoutineKind::kObserve, .with_operators = false});
  });
  apply({tool("a")});
  call("add");
  using enum RoutineMode;
  EXPECT_EQ(modes, (std::vector<std::optional<RoutineMode>>{kNoOperators, kIsolated, kNoOperators}));
}

TEST_F(ActionTest, OnlyARoutineThatLooksMayPromiseToCallNoOperator) {
  const std::string reason =
      ": .with_operators = false is for a routine that only looks (.kind = kObserve) and is not differentiable";
  const auto look = [](Values&) {};
  size_t refused = 0;
  tool("a").does([&](OpContext& op) {
    const auto refuses = [&](const std::string& method, const auto& schedule) {
      EXPECT_NE(error_of([&] { schedule(); }).find(": " + method + " on "), std::string::npos);
      EXPECT_NE(error_of([&] { schedule(); }).find(reason), std::string::npos);
      ++refused;
    };
    using enum RoutineKind;
    refuses("insert_before_op", [&] { op.insert_before_op(look, {.with_operators = false}); });
    refuses("insert_before_op",
            [&] { op.insert_before_op(look, {.differentiable = true, .kind = kObserve, .with_operators = false}); });
    refuses("insert_after_op", [&] { op.insert_after_op(look, {.kind = kTransform, .with_operators = false}); });
    refuses("insert_before_backward_op",
            [&] { op.insert_before_backward_op(look, {.kind = kTraceable, .with_operators = false}); });
    refuses("insert_after_backward_op", [&] { op.insert_after_backward_op(look, {.with_operators = false}); });
  });
  apply({tool("a")});
  call("add");
  EXPECT_EQ(refused, 5u);
}

TEST_F(ActionTest, WhatARoutineRunsIsNotObserved) {
  const auto inner = scope({tool("inner")});
  before([&](Values&) {
    Switch on = enabled();
    call("neg");
    auto in = inner->enter();
    call("linear");
  });
  call("add");
  EXPECT_EQ(trace(), "neg linear matmul add add");
}

TEST_F(ActionTest, AnEditedInPlaceResultReachesTheCaller) {
  after([&](Values& values) { values.set(0, reference::value(tens)); });
  Array mine{1, -2};
  const Array view = mine.reshaped({1, 2});
  const Array result = std::get<Array>(reference::call("relu_", {mine})[0]);
  EXPECT_EQ(mine, (Array{10, 10}));
  EXPECT_EQ(view.data(), mine.data());
  EXPECT_TRUE(result.shares_data(mine));
  EXPECT_FALSE(mine.shares_data(std::get<Array>(tens)));
}

TEST_F(ActionTest, AnEditedInputOfAnInPlaceOperatorReachesTheCallerAndNotTheTool) {
  before([&](Values& values) { values.set(0, reference::value(tens)); }, {0});
  Array mine{1, -2};
  reference::call("add_", {mine, Array{1, 1}});
  EXPECT_EQ(mine, (Array{11, 11}));
  EXPECT_EQ(std::get<Array>(tens), (Array{10, 10}));
}

TEST_F(ActionTest, AReplacedInPlaceOperatorReachesTheCaller) {
  tool("a").does(
      [&](OpContext& op) { op.replace_op([&](Values& values) { values.set_result(0, reference::value(tens)); }); });
  apply({tool("a")});
  Array mine{1, -2};
  reference::call("relu_", {mine});
  EXPECT_EQ(mine, (Array{10, 10}));
}

TEST_F(ActionTest, AnInPlaceOperatorKeepsItsShape) {
  const Operand wide = Array{1, 2, 3};
  after([&](Values& values) { values.set(0, reference::value(wide)); });
  EXPECT_EQ(error_of_call("relu_"),
            "[action] a: a C++ routine after ref::relu_: output 0 (result): shape [3] where an in-place operator keeps "
            "[2]");
}

TEST_F(ActionTest, AnInPlaceOperatorThatIsOnlyLookedAtRunsOnTheCallersArray) {
  const Array mine{1, -2};
  bool on_copy = false;
  after([&](Values& values) { on_copy = !input(values).shares_data(mine); });
  reference::call("relu_", {mine});
  EXPECT_TRUE(on_copy);  // the first time: it might have been edited
  reference::call("relu_", {mine});
  EXPECT_FALSE(on_copy);
  EXPECT_EQ(mine, (Array{1, 0}));
}

}  // namespace
}  // namespace amanda
