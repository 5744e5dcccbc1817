// What scopes, contexts and actions say of what is scheduled.
#include <thread>

#include "trace_test.h"

namespace amanda {
namespace {

class NamedRoutine final : public Routine {
 public:
  explicit NamedRoutine(std::string name) : name_(std::move(name)) {}
  void operator()(Values& values) override {
    if (values.point() == Point::kReplace) values.call_original();
  }
  std::string name() const override { return name_; }

 private:
  std::string name_;
};

RoutinePtr routine(const std::string& name) { return std::make_shared<NamedRoutine>(name); }

// "mul: a.x before, b.y in place of"; operands in brackets, and * for a backward operator's.
std::string text(const std::vector<ActionDescription>& actions) {
  static constexpr const char* kPoints[] = {"<", "=", ">"};
  std::string text, last;
  for (const ActionDescription& action : actions) {
    const std::string op =
        (action.place->backward_op ? action.place->backward_op->name + " of " : "") + action.place->op->name;
    if (op != last) text += (text.empty() ? "" : "; ") + op + ":";
    last = op;
    text += " " + action.tool + "." + action.routine + kPoints[static_cast<size_t>(action.point)];
    if (action.phase == Phase::kBackward) text += "*";
    if (!action.operands) continue;
    for (const auto& operand : *action.operands) {
      const auto* name = std::get_if<std::string>(&operand);
      text += "[" + (name ? *name : std::to_string(std::get<int64_t>(operand))) + "]";
    }
  }
  return text;
}

class DescriptionTest : public TraceTest {
 protected:
  static void schedule_all(OpContext& op) {
    op.insert_after_op(routine("x"), {.outputs = {0}});
    op.insert_before_op(routine("y"), {.inputs = {1}});
    op.insert_before_op(routine("z"), {.inputs = Positions::none()});
  }
};

TEST_F(DescriptionTest, AScopeListsWhatRunsInTheOrderInWhichItRuns) {
  tool("first").does(schedule_all);
  tool("second").does([](OpContext& op) {
    op.insert_before_op(routine("w"));
    op.replace_op(routine("v"));
  });
  Scope& opened = apply({tool("first"), tool("second")});
  EXPECT_EQ(text(opened.describe()), "");
  call("mul");
  call("add");
  call("mul");
  const std::string listed = text(opened.describe());
  EXPECT_EQ(listed.substr(0, listed.find(';')), "mul: first.y<[b] first.z< second.w< second.v= first.x>[result]");
  EXPECT_NE(listed.find("; add: "), std::string::npos);
  leave();
  EXPECT_EQ(text(opened.describe()), listed);
}

TEST_F(DescriptionTest, AnOperatorOnWhichNothingIsScheduledIsNotListed) {
  tool("looks").does([](OpContext& op) { op.set("seen", true); });
  Scope& opened = apply({tool("looks")});
  call("mul");
  EXPECT_TRUE(opened.describe().empty());
}

TEST_F(DescriptionTest, WhatIsRemovedOrForgottenOrStoppedIsNotListed) {
  Action removed;
  tool("a").does([&](OpContext& op) { removed = op.insert_before_op(routine("x")); });
  tool("b").does([](OpContext& op) { op.insert_before_op([](Values&) { throw std::runtime_error("boom"); }); });
  Scope& opened = apply({tool("a"), tool("b")}, OnError::kDisable);
  EXPECT_TRUE(opened.stopped_tools().empty());
  call("mul");
  EXPECT_EQ(text(opened.describe()), "mul: a.x<");
  EXPECT_EQ(log().size(), 1);
  ASSERT_EQ(opened.stopped_tools().size(), 1);
  EXPECT_EQ(opened.stopped_tools()[0], &tool("b"));
  EXPECT_FALSE(removed.describe().removed);
  removed.remove();
  EXPECT_EQ(text(opened.describe()), "");
  EXPECT_TRUE(removed.describe().removed);
  call("add");
  opened.cache_clear();
  EXPECT_EQ(text(opened.describe()), "");
}

TEST_F(DescriptionTest, EachBackwardActionIsListedWhereItWasScheduled) {
  tool("a").does([](OpContext& op) { op.insert_after_backward_op(routine("x"), {.grad_inputs = {0}}); },
                 {.ops = {"mul"}});
  tool("a").does([](OpContext& op) { op.insert_before_backward_op(routine("y")); }, {.backward = true, .ops = {"mul"}});
  Scope& opened = apply({tool("a")});
  call("mul");
  EXPECT_EQ(text(opened.describe()), "mul: a.x>*[0]");
}

TEST_F(DescriptionTest, AContextListsWhatItsAnalysesHaveScheduledSoFar) {
  OpContext* kept = nullptr;
  tool("a").does([&](OpContext& op) {
    note("(" + text(op.actions()) + ")");
    schedule_all(op);
    note("(" + text(op.actions()) + ")");
    kept = &op;
  });
  tool("b").does([&](OpContext& op) { note("(" + text(op.actions()) + ")"); });
  apply({tool("a"), tool("b")});
  call("mul");
  const std::string scheduled = "mul: a.y<[b] a.z< a.x>[result]";
  EXPECT_EQ(trace(), "() (" + scheduled + ") (" + scheduled + ") mul");
  EXPECT_EQ(text(kept->actions()), scheduled);
}

TEST_F(DescriptionTest, AnotherAnalysisOfTheSameRoutineTakesThePlaceOfTheFirst) {
  OpContext* kept = nullptr;
  tool("a").does([&](OpContext& op) {
    op.insert_before_op(routine("x"));
    note("(" + text(op.actions()) + ")");
    kept = &op;
  });
  Scope& opened = apply({tool("a")});
  const Switch uncached = cache_disabled();
  call("mul");
  call("mul");
  EXPECT_EQ(trace(), "(mul: a.x<) mul (mul: a.x<) mul");
  EXPECT_EQ(text(opened.describe()), "mul: a.x<");
}

TEST_F(DescriptionTest, AnActionOutlivesToolAndScope) {
  Action kept;
  {
    Tool gone("gone");
    gone.add_inst_for_op([&](OpContext& op) { kept = op.insert_before_op(routine("x")); });
    Scope scope(gone);
    auto inside = scope.enter();
    call("mul");
  }
  EXPECT_EQ(text({kept.describe()}), "mul: gone.x<");
  EXPECT_TRUE(kept.describe().removed);
}

TEST_F(DescriptionTest, AnEmptyHandleSaysWhatItIs) {
  EXPECT_EQ(error_of([] { Action().describe(); }),
            "[action] this handle names no action; use one that insert_before_op or its like returned");
}

TEST_F(DescriptionTest, AScopeIsDescribedOnOneThreadWhileAnotherAnalyses) {
  tool("a").does(schedule_all);
  Scope& opened = apply({tool("a")});
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    while (!stop) {
      const std::vector<ActionDescription> actions = opened.describe();
      EXPECT_EQ(actions.size() % 3, 0);
    }
  });
  for (int i = 0; i < 200; ++i) {
    call(i % 2 ? "mul" : "add");
    if (i % 10 == 9) opened.cache_clear();
  }
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace amanda
