// Exceptions at every point: what on_error="raise" and on_error="disable" leave behind.
#include "trace_test.h"

namespace amanda {
namespace {

class RaiseTest : public TraceTest {
 protected:
  /// The call throws what the tool threw; then, without the failure, it runs as if nothing had been.
  void expect_clean_after(const std::string& op, const std::string& failing_run, const std::string& next_run) {
    EXPECT_EQ(error_of<std::runtime_error>([&] { call(op); }), "boom");
    EXPECT_EQ(trace(), failing_run);
    EXPECT_EQ(reference::routine_mode(), std::nullopt);
    tool("b").fails_at("");
    call(op);
    EXPECT_EQ(trace(), next_run);
  }
};

TEST_F(RaiseTest, InAnAnalysis) {
  apply({tool("a"), tool("b").tells_analysis().fails_at("?"), tool("c")});
  expect_clean_after("add", "b?", "b? a< b< c< add a> b> c>");
}

TEST_F(RaiseTest, InABeforeAction) {
  apply({tool("a"), tool("b").fails_at("<"), tool("c")});
  expect_clean_after("add", "a< b<", "a< b< c< add a> b> c>");
}

TEST_F(RaiseTest, InAnAfterAction) {
  apply({tool("a"), tool("b").fails_at(">"), tool("c")});
  expect_clean_after("add", "a< b< c< add a> b>", "a< b< c< add a> b> c>");
}

TEST_F(RaiseTest, InAReplacement) {
  apply({tool("a"), tool("b").replaces().fails_at("=")});
  expect_clean_after("add", "a< b=", "a< b= a>");
}

TEST_F(RaiseTest, InAReplacementAfterTheOriginal) {
  apply({tool("a"), tool("b").wraps().fails_at(")")});
  expect_clean_after("add", "a< b( add )b", "a< b( add )b a>");
}

TEST_F(RaiseTest, InAWrappedReplacement) {
  tool("c").after("b").wraps();
  apply({tool("b").replaces().fails_at("="), tool("c")});
  expect_clean_after("add", "c( b=", "c( b= )c");
}

TEST_F(RaiseTest, InsideACompositeOperator) {
  apply({tool("a").asks({"linear"}), tool("b").asks({"matmul"}).fails_at("<")});
  expect_clean_after("linear", "a< linear b<", "a< linear b< matmul b> add a>");
}

TEST_F(RaiseTest, InTheOperatorItself) {
  apply({tool("a"), tool("b").nested()});
  EXPECT_THROW(reference::call("linear", {Array{1}, Array{1}, Array{1}}), std::invalid_argument);
  EXPECT_EQ(trace(), "a< b< linear b< matmul");
  call("linear");
  EXPECT_EQ(trace(), "a< b< linear b< matmul b> b< add b> a> b>");
}

TEST_F(RaiseTest, InTheOperatorInsideAReplacement) {
  apply({tool("a").wraps()});
  EXPECT_THROW(reference::call("add", {Array{1}, Array{1, 2}}), std::invalid_argument);
  EXPECT_EQ(trace(), "a( add");
  call("add");
  EXPECT_EQ(trace(), "a( add )a");
}

TEST_F(RaiseTest, AnEditHeldByAFailingRoutineIsForgotten) {
  const Operand tens = Array{10, 10};
  tool("b").does([&](OpContext& op) {
    op.insert_before_op([&](Values& values) {
      if (values.size() == 2) values.set(0, reference::value(tens));
      tool("b").say("<");
    });
  });
  Array mine{1, -2};
  apply({tool("b").fails_at("<")}, OnError::kDisable);
  EXPECT_EQ(call("add"), (Array{4, 2}));
  EXPECT_EQ(log().size(), 1u);
}

class DisableTest : public TraceTest {
 protected:
  std::string only_log_line() {
    const auto lines = log();
    EXPECT_EQ(lines.size(), 1u);
    return lines.empty() ? "" : lines[0];
  }
};

TEST_F(DisableTest, AFailingAnalysisStopsTheToolAndItsDependents) {
  tool("c").after("b").tells_lifecycle();
  apply({tool("a"), tool("b").tells_lifecycle().tells_analysis().fails_at("?"), tool("c")}, OnError::kDisable);
  trace();
  call("add");
  EXPECT_EQ(trace(), "b? b! c! a< add a>");
  EXPECT_EQ(only_log_line(),
            "[amanda] b: the analysis of ref::add failed: boom; stopped for the rest of the scope: 'b', 'c'");
  call("add");
  call("mul");
  EXPECT_EQ(trace(), "a< add a> a< mul a>");
}

TEST_F(DisableTest, AFailingOutputAnalysisStopsTheTool) {
  tool("b").does(
      [&](OpContext& op) {
        op.insert_after_op([&](Values&) { note("b>"); });
        tool("b").say("?");
      },
      {.require_outputs = true});
  apply({tool("a"), tool("b").fails_at("?")}, OnError::kDisable);
  call("add");
  EXPECT_EQ(trace(), "a< add b? a>");
  EXPECT_EQ(only_log_line(),
            "[amanda] b: the analysis of ref::add failed: boom; stopped for the rest of the scope: 'b'");
}

TEST_F(DisableTest, AFailingBeforeActionStopsTheToolAndItsDependents) {
  tool("c").after("b").tells_lifecycle();
  apply({tool("a"), tool("b").tells_lifecycle().fails_at("<"), tool("c")}, OnError::kDisable);
  trace();
  call("add");
  EXPECT_EQ(trace(), "a< b< b! c! add a>");
  EXPECT_EQ(only_log_line(),
            "[amanda] b: a C++ routine before ref::add failed: boom; stopped for the rest of the scope: 'b', 'c'");
  call("add");
  EXPECT_EQ(trace(), "a< add a>");
}

TEST_F(DisableTest, AFailingAfterActionLeavesTheResultAsItWas) {
  const Operand tens = Array{10, 10};
  tool("b").does([&](OpContext& op) {
    op.insert_after_op([&](Values& values) {
      values.set(0, reference::value(tens));
      tool("b").say(">");
    });
  });
  apply({tool("b").fails_at(">"), tool("c")}, OnError::kDisable);
  EXPECT_EQ(call("add"), (Array{4, 2}));
  EXPECT_EQ(trace(), "c< add b> c>");
  EXPECT_NE(only_log_line().find("after ref::add failed: boom"), std::string::npos);
}

TEST_F(DisableTest, EditsMadeBeforeTheFailureRemain) {
  const Operand tens = Array{10, 10};
  tool("b").does([&](OpContext& op) {
    op.insert_before_op([&](Values& values) { values.set(0, reference::value(tens)); });
    op.insert_before_op([&](Values&) { tool("b").say("<"); });
  });
  apply({tool("b").fails_at("<")}, OnError::kDisable);
  EXPECT_EQ(call("add"), (Array{13, 14}));
  EXPECT_EQ(call("add"), (Array{4, 2}));
  EXPECT_EQ(log().size(), 1u);
}

TEST_F(DisableTest, AFailingReplacementRunsTheOriginal) {
  apply({tool("a"), tool("b").replaces().fails_at("=")}, OnError::kDisable);
  EXPECT_EQ(call("add"), (Array{4, 2}));
  EXPECT_EQ(trace(), "a< b= add a>");
  EXPECT_NE(only_log_line().find("b: a C++ routine replacing ref::add failed: boom"), std::string::npos);
  call("add");
  EXPECT_EQ(trace(), "a< add a>");
}

TEST_F(DisableTest, AReplacementThatFailsAfterTheOriginalLetsItRunAgain) {
  apply({tool("b").wraps().fails_at(")")}, OnError::kDisable);
  EXPECT_EQ(call("add"), (Array{4, 2}));
  EXPECT_EQ(trace(), "b( add )b add");
  EXPECT_EQ(log().size(), 1u);
}

TEST_F(DisableTest, AFailingReplacementThatChangedItsInputsRaises) {
  tool("b").does([&](OpContext& op) {
    op.may_mutate();
    op.replace_op([&](Values& values) {
      Array(input(values)).assign({0, 0});
      tool("b").say("=");
    });
  });
  apply({tool("b").fails_at("=")}, OnError::kDisable);
  EXPECT_EQ(error_of<std::runtime_error>([&] { call("add"); }), "boom");
  EXPECT_EQ(trace(), "b=");
  EXPECT_EQ(log().size(), 1u);
}

TEST_F(DisableTest, AReplacementThatFailsAfterAnInPlaceOriginalRaises) {
  apply({tool("b").wraps().fails_at(")")}, OnError::kDisable);
  EXPECT_EQ(error_of<std::runtime_error>([&] { call("add_"); }), "boom");
  EXPECT_EQ(trace(), "b( add_ )b");
  EXPECT_EQ(log().size(), 1u);
}

TEST_F(DisableTest, AWrapperStopsWithTheReplacementItWraps) {
  tool("c").after("b").wraps().tells_lifecycle();
  apply({tool("b").replaces().tells_lifecycle().fails_at("="), tool("c")}, OnError::kDisable);
  trace();
  EXPECT_EQ(call("add"), (Array{4, 2}));
  EXPECT_EQ(trace(), "c( b= b! c! add )c");
  EXPECT_EQ(only_log_line(),
            "[amanda] b: a C++ routine replacing ref::add failed: boom; stopped for the rest of the scope: 'b', 'c'");
  call("add");
  EXPECT_EQ(trace(), "add");
}

TEST_F(DisableTest, AFailingWrapperFallsBackToTheReplacementItWraps) {
  tool("c").after("b").wraps();
  apply({tool("b").replaces(), tool("c").fails_at("(")}, OnError::kDisable);
  EXPECT_EQ(call("add"), (Array{1, -2}));
  EXPECT_EQ(trace(), "c( b=");
  EXPECT_NE(only_log_line().find("stopped for the rest of the scope: 'c'"), std::string::npos);
}

TEST_F(DisableTest, AnOperatorThatFailsStopsNoTool) {
  apply({tool("a")}, OnError::kDisable);
  EXPECT_THROW(reference::call("add", {Array{1}, Array{1, 2}}), std::invalid_argument);
  call("add");
  EXPECT_EQ(trace(), "a< add a< add a>");
}

TEST_F(DisableTest, AnOperatorThatFailsInsideAReplacementStopsNoTool) {
  tool("b").after("a").wraps();
  apply({tool("a").wraps(), tool("b")}, OnError::kDisable);
  EXPECT_THROW(reference::call("add", {Array{1}, Array{1, 2}}), std::invalid_argument);
  EXPECT_EQ(trace(), "b( a( add");
  call("add");
  EXPECT_EQ(trace(), "b( a( add )a )b");
}

TEST_F(DisableTest, MutationIsAFailureToo) {
  tool("b").does([&](OpContext& op) {
    op.insert_after_op([&](Values& values) { Array(input(values)).assign({0, 0}); });
  });
  apply({tool("b")}, OnError::kDisable);
  call("add");
  EXPECT_NE(only_log_line().find("it changed output 0 (result) in place, and that stays changed"), std::string::npos);
}

TEST_F(DisableTest, ARoutineMaySayThatAnExceptionIsNoFailure) {
  struct Interrupted final : Routine {
    void operator()(Values&) override { throw std::runtime_error("interrupt"); }
    std::string name() const override { return "interrupted"; }
    bool is_failure(const std::exception_ptr&) const override { return false; }
  };
  tool("b").does([](OpContext& op) { op.insert_before_op(std::make_shared<Interrupted>()); });
  apply({tool("b")}, OnError::kDisable);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(error_of<std::runtime_error>([&] { call("add"); }), "interrupt");
}

TEST_F(DisableTest, StoppingEndsWithTheScopeObject) {
  Scope& scope = apply({tool("a").fails_at("<")}, OnError::kDisable);
  call("add");
  EXPECT_EQ(log().size(), 1u);
  tool("a").fails_at("");
  leave();
  enter(scope);
  call("add");
  EXPECT_EQ(trace(), "a< add add");
  leave();
  apply({tool("a")});
  call("add");
  EXPECT_EQ(trace(), "a< add a>");
}

TEST_F(DisableTest, AFailingOnDisableDoesNotKeepTheOthersFromTheirs) {
  struct Fails final : Tool {
    Fails() : Tool("fails") {
      add_inst_for_op([](OpContext&) { throw std::runtime_error("boom"); });
    }
    void on_disable(const std::exception_ptr&) override { throw std::runtime_error("bang"); }
  } fails;
  TraceTool& dependent = tool("b").tells_lifecycle();
  dependent.depends_on(fails);
  Scope scope({&fails, &dependent}, {OnError::kDisable});
  auto in = scope.enter();
  trace();
  call("add");
  EXPECT_EQ(trace(), "b! add");
  EXPECT_EQ(log(), (std::vector<std::string>{
                       "[amanda] fails: the analysis of ref::add failed: boom; stopped for the rest of the scope: "
                       "'fails', 'b'",
                       "[amanda] on_disable of 'fails' failed: bang"}));
}

}  // namespace
}  // namespace amanda
