// Exceptions and misuse in backward routines.
#include <amanda/reference/operator.h>

#include "backward_test.h"

namespace amanda {
namespace {

class BackwardErrorTest : public BackwardTest {
 protected:
  /// Defines "fails": the rule of its node throws std::runtime_error("boom") when it first runs.
  BackwardErrorTest() {
    auto fail_once = [left = std::make_shared<int>(1)](const reference::Gradients& in) {
      if ((*left)-- > 0) throw std::runtime_error("boom");
      return in;
    };
    reference::define({.info = {"test", "fails", "", {"a"}, {"result"}, ""},
                       .kernel = [](const Operands& in) { return reference::call("neg", in); },
                       .differentiate = [=](const Operands&, const Operands&) { return fail_once; }});
  }

  /// backward() throws what the tool threw; then, without the failure, it runs as if nothing had been.
  void expect_clean_after(const std::string& failing_run, const std::string& next_run) {
    EXPECT_EQ(error_of<std::runtime_error>([&] { step(); }), "boom");
    EXPECT_EQ(trace(), failing_run);
    EXPECT_EQ(reference::routine_mode(), std::nullopt);
    EXPECT_EQ(gradient(x), std::nullopt);
    tool("b").fails_at("");
    step();
    EXPECT_EQ(trace(), next_run);
  }
  std::string only_log_line() {
    const auto lines = log();
    EXPECT_EQ(lines.size(), 1u);
    return lines.empty() ? "" : lines[0];
  }
  /// A tool "b" whose backward analysis of ref::neg's own node is `analysis`.
  TraceTool& analysing(std::function<void(OpContext&)> analysis) {
    return tool("b").does(
        [=](OpContext& op) {
          if (op.site().made_by_forward()) analysis(op);
        },
        {.backward = true});
  }
};
INSTANTIATE_BACKWARD_TEST(BackwardErrorTest);

TEST_P(BackwardErrorTest, InAnAnalysis) {
  apply({tool("a").backward(), tool("b").backward().tells_analysis().fails_at("?")});
  expect_clean_after("neg b?", "neg b? a< b< NegBackward a> b> AccumulateGrad");
}

TEST_P(BackwardErrorTest, InAnAnalysisOfTheOutputs) {
  tool("b").does([&](OpContext&) { tool("b").say("?"); }, {.backward = true, .require_outputs = true, .ops = {"neg"}});
  apply({tool("a").backward(), tool("b").fails_at("?")});
  expect_clean_after("neg a< NegBackward b?", "neg a< NegBackward b? a> AccumulateGrad b?");
}

TEST_P(BackwardErrorTest, InABeforeAction) {
  apply({tool("a").backward(), tool("b").backward().fails_at("<"), tool("c").backward()});
  expect_clean_after("neg a< b<", "neg a< b< c< NegBackward a> b> c> AccumulateGrad");
}

TEST_P(BackwardErrorTest, InAnAfterAction) {
  apply({tool("a").backward(), tool("b").backward().fails_at(">"), tool("c").backward()});
  expect_clean_after("neg a< b< c< NegBackward a> b>", "neg a< b< c< NegBackward a> b> c> AccumulateGrad");
}

TEST_P(BackwardErrorTest, InAReplacement) {
  apply({tool("a").backward(), tool("b").replaces().backward().fails_at("=")});
  expect_clean_after("neg a< b=", "neg a< b= a> AccumulateGrad");
}

TEST_P(BackwardErrorTest, InAForwardRoutineTheTapeIsNotBound) {
  tool("b").does(
      [&](OpContext& op) {
        tool("b").say("?");
        op.insert_before_backward_op([&](Values&) { tool("b").say("<"); });
      },
      {.require_outputs = true});
  apply({tool("b").fails_at("?")});
  expect_clean_after("neg b?", "neg b? b< NegBackward AccumulateGrad");
}

TEST_P(BackwardErrorTest, InTheNodeItself) {
  apply({tool("a").backward()}, OnError::kDisable);
  const Array y = run("fails", {x});
  EXPECT_EQ(error_of<std::runtime_error>([&] { backward(y); }), "boom");
  backward(y);
  EXPECT_EQ(trace(), "fails neg a< FailsBackward a< FailsBackward a> AccumulateGrad");
}

TEST_P(BackwardErrorTest, InTheNodeItselfTheOutputsAreStillToBeAnalysed) {
  tool("b").does([&](OpContext&) { note("b?"); }, {.backward = true, .require_outputs = true});
  apply({tool("b")});
  const Array y = run("fails", {x});
  EXPECT_EQ(error_of<std::runtime_error>([&] { backward(y); }), "boom");
  backward(y);
  EXPECT_EQ(trace(), "fails neg FailsBackward FailsBackward b? AccumulateGrad b?");
}

TEST_P(BackwardErrorTest, DisabledAFailingAnalysisStopsTheToolAndItsDependents) {
  tool("c").after("b").backward();
  apply({tool("a").backward(), tool("b").backward().tells_analysis().fails_at("?"), tool("c")}, OnError::kDisable);
  step();
  EXPECT_EQ(trace(), "neg b? a< NegBackward a> AccumulateGrad");
  EXPECT_EQ(
      only_log_line(),
      "[amanda] b: the analysis of NegBackward of ref::neg failed: boom; stopped for the rest of the scope: 'b', 'c'");
  step();
  EXPECT_EQ(trace(), "neg a< NegBackward a> AccumulateGrad");
}

TEST_P(BackwardErrorTest, DisabledAFailingActionKeepsTheValuesAndStopsTheTool) {
  const Operand other = Array{5, 5};
  analysing([&](OpContext& op) {
    op.insert_before_backward_op([&](Values& values) {
      values.set(0, reference::value(other));
      tool("b").say("<");
    });
  });
  apply({tool("a").backward(), tool("b").fails_at("<")}, OnError::kDisable);
  EXPECT_EQ(gradient_of_step(), given({-1, -1}));
  EXPECT_EQ(trace(), "neg a< b< NegBackward a> AccumulateGrad");
  EXPECT_EQ(only_log_line(),
            "[amanda] b: a C++ routine before NegBackward of ref::neg failed: boom; stopped for the rest of the scope: "
            "'b'");
  EXPECT_EQ(gradient_of_step(), given({-1, -1}));
  EXPECT_EQ(trace(), "neg a< NegBackward a> AccumulateGrad");
}

TEST_P(BackwardErrorTest, DisabledAFailingReplacementRunsTheNode) {
  apply({tool("b").replaces().backward().fails_at("=")}, OnError::kDisable);
  EXPECT_EQ(gradient_of_step(), given({-1, -1}));
  EXPECT_NE(only_log_line().find("b: a C++ routine replacing NegBackward of ref::neg failed: boom"), std::string::npos);
  trace();
  EXPECT_EQ(gradient_of_step(), given({-1, -1}));
  EXPECT_EQ(trace(), "neg NegBackward AccumulateGrad");
}

TEST_P(BackwardErrorTest, AToolThatStoppedForwardsIsStoppedBackwards) {
  tool("b").does([&](OpContext& op) {
    op.insert_before_op([&](Values&) { tool("b").say("<"); });
    op.insert_before_backward_op([&](Values&) { note("not this"); });
  });
  apply({tool("b").fails_at("<"), tool("a").backward()}, OnError::kDisable);
  step();
  EXPECT_EQ(trace(), "b< neg a< NegBackward a> AccumulateGrad");
  EXPECT_EQ(log().size(), 1u);
}

TEST_P(BackwardErrorTest, PositionsAndNamesThatAreNotThere) {
  std::function<void(OpContext&)> tried;
  analysing([&](OpContext& op) { tried(op); });
  apply({tool("b")});
  const Array y = run("mul", {x, leaf({3, 4})});
  auto error_when = [&](std::function<void(OpContext&)> analysis) {
    tried = std::move(analysis);
    return error_of<std::invalid_argument>([&] { backward(y); });
  };
  auto nothing = [](Values&) {};
  EXPECT_EQ(error_when([&](OpContext& op) { op.insert_after_backward_op(nothing, {.grad_inputs = {7}}); }),
            "[context] b: insert_after_backward_op on MulBackward of ref::mul: there is no position 7; it has 0, 1");
  EXPECT_EQ(error_when([&](OpContext& op) { op.insert_before_backward_op(nothing, {.grad_outputs = {1}}); }),
            "[context] b: insert_before_backward_op on MulBackward of ref::mul: there is no position 1; it has 0");
  EXPECT_EQ(error_when([&](OpContext& op) { op.replace_backward_op(nothing, {.grad_outputs = {"a"}}); }),
            "[context] b: replace_backward_op on MulBackward of ref::mul: there is no 'a'; it has 0");
}

TEST_P(BackwardErrorTest, AForwardAnalysisSelectsGradientsByPosition) {
  tool("a").does([](OpContext& op) { op.insert_after_backward_op([](Values&) {}, {.grad_inputs = {"a"}}); });
  apply({tool("a")});
  EXPECT_EQ(error_of<std::invalid_argument>([&] { step(); }),
            "[context] a: insert_after_backward_op on ref::neg: gradients are selected by position, from 0 on");
}

TEST_P(BackwardErrorTest, ABackwardAnalysisComesTooLateForTheForwardOperator) {
  analysing([](OpContext& op) { op.insert_before_op([](Values&) {}); });
  apply({tool("b")});
  EXPECT_EQ(
      error_of([&] { step(); }),
      "[context] b: insert_before_op on NegBackward of ref::neg: the forward operator has run; schedule this in an "
      "analysis routine of forward operators");
}

TEST_P(BackwardErrorTest, BackwardOperatorsOfAnOperatorWithoutAnIdCantBeTold) {
  tool("a").does([](OpContext& op) { op.insert_before_backward_op([](Values&) {}); });
  apply({tool("a")});
  Place nowhere = Place::nowhere();
  EXPECT_EQ(error_of([&] { step(); }),
            "[context] a: insert_before_backward_op on ref::neg: this operator has no id, so its backward operators "
            "can't be told");
}

TEST_P(BackwardErrorTest, ALeafsNodeIsNotReplaced) {
  tool("a").does(
      [](OpContext& op) {
        if (!op.site().made_by_forward()) op.replace_backward_op([](Values&) {});
      },
      {.backward = true});
  apply({tool("a")});
  EXPECT_EQ(error_of([&] { step(); }),
            "[context] a: replace_backward_op on AccumulateGrad of ref::neg: it adds to the gradient of a leaf, and "
            "nothing else can take its place; edit what it adds, before it");
}

TEST_P(BackwardErrorTest, GradientsKeepTheirShapes) {
  const Operand longer = Array{1, 2, 3}, number = 1.0;
  const Operand* given = &longer;
  Point point = Point::kBefore;
  analysing([&](OpContext& op) {
    auto sets = [&](Values& values) { values.set(0, reference::value(*given)); };
    if (point == Point::kBefore) op.insert_before_backward_op(sets);
    if (point == Point::kAfter) op.insert_after_backward_op(sets);
    if (point == Point::kReplace) {
      op.replace_backward_op([&](Values& values) { values.set_result(0, reference::value(*given)); });
    }
  });
  Switch off = cache_disabled();
  apply({tool("b")});
  EXPECT_EQ(error_of([&] { step(); }),
            "[action] b: a C++ routine before NegBackward of ref::neg: grad_output 0: shape [3] where [2] is needed");
  given = &number;
  EXPECT_EQ(
      error_of([&] { step(); }),
      "[action] b: a C++ routine before NegBackward of ref::neg: grad_output 0: a number where an array is needed");
  given = &longer;
  point = Point::kAfter;
  EXPECT_EQ(error_of([&] { step(); }),
            "[action] b: a C++ routine after NegBackward of ref::neg: grad_input 0: shape [3] where [2] is needed");
  point = Point::kReplace;
  EXPECT_EQ(error_of([&] { step(); }),
            "[action] b: a C++ routine replacing NegBackward of ref::neg: result 0: shape [3] where [2] is needed");
}

TEST_P(BackwardErrorTest, ChangingAGradientInPlaceMustBeSaid) {
  bool says_so = false;
  analysing([&](OpContext& op) {
    if (says_so) op.may_mutate();
    op.insert_after_backward_op([](Values& values) { Array(input(values)).assign({0, 9}); });
  });
  Scope& scope = apply({tool("b")});
  EXPECT_EQ(error_of([&] { step(); }),
            "[action] b: a C++ routine after NegBackward of ref::neg: it changed grad_input 0 in place, and that "
            "stays changed; return a new tensor instead, or call context.may_mutate() at analysis");
  says_so = true;
  scope.cache_clear();
  EXPECT_EQ(gradient_of_step(), given({0, 9}));
}

}  // namespace
}  // namespace amanda
