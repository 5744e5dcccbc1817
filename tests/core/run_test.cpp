// One execution, forward and backward; and inputs beside results.
#include <amanda/reference/graph.h>

#include "backward_test.h"

namespace amanda {
namespace {

class RunTest : public BackwardTest {
 protected:
  /// Keeps what each `neg` gives, and notes it with the gradient that it meets: "1: 2*5".
  void meet() {
    tool("a").does(
        [](OpContext& op) {
          op.insert_after_op([](Values& values) { values.run<double>() = input(values).data()[0]; });
        },
        {.ops = {"mul.scalar"}});
    tool("a").does(
        [&](OpContext& op) {
          if (!op.site().made_by_forward()) return;
          op.insert_before_backward_op([&](Values& values) {
            note(std::to_string(*values.run_index()) + ": " + std::to_string(int(values.run<double>())) + "*" +
                 std::to_string(int(input(values).data()[0])));
          });
        },
        {.backward = true, .ops = {"mul.scalar"}});
  }
  Array twice(const Array& from, int times) {
    Array y = from;
    for (int i = 0; i < times; ++i) y = run("mul.scalar", {y, 2.0});
    return y;
  }
};
INSTANTIATE_BACKWARD_TEST(RunTest);

TEST_P(RunTest, AValueMeetsItsOwnGradientInALoop) {
  meet();
  apply({tool("a")});
  const Array y = twice(leaf({3}), 3);
  trace();
  backward(y);
  EXPECT_EQ(trace(), "2: 24*1 MulBackward 1: 12*2 MulBackward 0: 6*4 MulBackward AccumulateGrad");
}

TEST_P(RunTest, ExecutionsAreCountedSinceTheScopeWasEntered) {
  meet();
  Scope& scope = apply({tool("a")});
  backward(twice(leaf({1}), 2));
  leave();
  trace();
  enter(scope);
  backward(twice(leaf({1}), 1));
  EXPECT_EQ(trace(), "mul 0: 2*1 MulBackward AccumulateGrad");
}

TEST_P(RunTest, AnObjectGoesWithTheTape) {
  std::weak_ptr<int> kept;
  tool("a").does(
      [&](OpContext& op) {
        op.insert_after_op(
            [&](Values& values) { kept = values.run<std::shared_ptr<int>>() = std::make_shared<int>(3); });
      },
      {.ops = {"neg"}});
  tool("a").does([](OpContext&) {}, {.backward = true, .ops = {"neg"}});
  apply({tool("a")});
  {
    const Array y = run("neg", {x});
    EXPECT_FALSE(kept.expired());
    backward(y);
    EXPECT_FALSE(kept.expired());
  }
  EXPECT_TRUE(kept.expired());
}

TEST_P(RunTest, ATypeThatSettlesIsToldWhenTheOperatorHasEnded) {
  struct Settling {
    TraceTest* test = nullptr;
    void settle(OpCall& call) { test->note(call.phase() == Phase::kForward ? "settled" : "settled'"); }
  };
  tool("a").does(
      [&](OpContext& op) {
        op.insert_before_op([this](Values& values) { values.run<Settling>().test = this; });
        op.insert_after_op([this](Values&) { note(">"); });
      },
      {.ops = {"neg"}});
  tool("a").does(
      [](OpContext& op) {
        if (op.site().made_by_forward()) op.insert_after_backward_op([](Values& values) { values.run<Settling>(); });
      },
      {.backward = true, .ops = {"neg"}});
  apply({tool("a")});
  step();
  EXPECT_EQ(trace(), "neg > settled NegBackward settled' AccumulateGrad");
}

TEST_P(RunTest, GradientsThatCameInAreShownBesideThoseThatGoOut) {
  tool("a").does(
      [&](OpContext& op) {
        if (!op.site().made_by_forward()) return;
        op.insert_after_backward_op(
            [&](Values& values) {
              ASSERT_EQ(values.num_inputs(), 1u);
              EXPECT_EQ(values.input_position(0), 0u);
              EXPECT_EQ(reference::array(values.input(0)), (Array{1, 1}));
              EXPECT_EQ(input(values), (Array{-1, -1}));
              EXPECT_THROW(values.input(1), std::out_of_range);
              note("both");
            },
            {.grad_outputs = {0}});
      },
      {.backward = true, .ops = {"neg"}});
  apply({tool("a")});
  step();
  EXPECT_EQ(trace(), "neg NegBackward both AccumulateGrad");
}

class BothSidesTest : public TraceTest {};

TEST_F(BothSidesTest, InputsAreWhatTheOperatorRanOn) {
  const Operand other = Array{7, -7};
  tool("edits").does(
      [&](OpContext& op) { op.insert_before_op([&](Values& values) { values.set(0, reference::value(other)); }); },
      {.ops = {"relu"}});
  tool("looks").does(
      [&](OpContext& op) {
        op.insert_after_op(
            [&](Values& values) {
              EXPECT_EQ(reference::array(values.input(0)), (Array{7, -7}));
              EXPECT_EQ(input(values), (Array{7, 0}));
            },
            {.inputs = Positions::all()});
        EXPECT_EQ(reference::array(op.input(0)), (Array{1, 2}));
      },
      {.require_outputs = true, .ops = {"relu"}});
  apply({tool("edits"), tool("looks")});
  for (int i = 0; i < 2; ++i) reference::call("relu", {Array{1, 2}});
}

TEST_F(BothSidesTest, WhatIsGivenReplacesResultsOnly) {
  const Operand other = Array{5, 5};
  tool("a").does(
      [&](OpContext& op) {
        op.insert_after_op([&](Values& values) { values.set(0, reference::value(other)); }, {.inputs = {0}});
      },
      {.ops = {"relu"}});
  apply({tool("a")});
  Array given{1, 2};
  EXPECT_EQ(std::get<Array>(reference::call("relu", {given})[0]), (Array{5, 5}));
  EXPECT_EQ(given, (Array{1, 2}));
}

TEST_F(BothSidesTest, ChangingAnInputInPlaceIsAnError) {
  tool("a").does(
      [&](OpContext& op) {
        op.insert_after_op(
            [](Values& values) {
              Array(reference::array(values.input(0))).assign({0, 0});
            },
            {.outputs = Positions::none(), .inputs = {0}});
      },
      {.ops = {"relu"}});
  apply({tool("a")});
  EXPECT_EQ(error_of([] {
              reference::call("relu", {Array{1, 2}});
            }),
            "[action] a: a C++ routine after ref::relu: it changed input 0 (a) in place, and that stays changed; "
            "return a new tensor instead, or call context.may_mutate() at analysis");
}

TEST_F(BothSidesTest, TapsOfAGraphShareARunAndSeeBothSides) {
  reference::Graph graph;
  const auto x = graph.input();
  const auto y = graph.add("neg", {graph.add("neg", {x}, "first")[0]}, "second")[0];
  graph.output(graph.gradients(y, {x})[0]);
  tool("a").does([](OpContext& op) {
    op.insert_after_op(
        [](Values& values) {
          EXPECT_EQ(reference::array(values.input(0)).data()[0], -input(values).data()[0]);
          values.run<double>() = input(values).data()[0];
        },
        {.inputs = {0}});
  });
  tool("a").does(
      [&](OpContext& op) {
        op.insert_before_backward_op([&](Values& values) {
          note(std::to_string(int(values.run<double>())) + "@" + std::to_string(*values.run_index()));
        });
      },
      {.backward = true});
  apply({tool("a")});
  for (double number : {3, 4}) graph.run({Array{number}});
  EXPECT_EQ(trace(), "neg neg 3@0 NegBackward -3@0 NegBackward neg neg 4@1 NegBackward -4@1 NegBackward");
}

}  // namespace
}  // namespace amanda
