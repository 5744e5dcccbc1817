// Backward operators: seen, edited and tied to their forward operators.
//
// The marks are those of trace_test.h; NegBackward is the operator itself. Each test runs twice, since a framework may
// let the core run its nodes or run them itself, between hooks.
#include <amanda/reference/gradient.h>
#include <amanda/reference/operator.h>

#include <barrier>
#include <thread>

#include "trace_test.h"

namespace amanda {
namespace {

using reference::gradient;
using reference::leaf;
using reference::NodesRun;

class BackwardTest : public TraceTest, public ::testing::WithParamInterface<NodesRun> {
 protected:
  const Array x = leaf({1, -2});

  static Array run(const std::string& op, Operands inputs, size_t result = 0) {
    return std::get<Array>(reference::call(op, std::move(inputs))[result]);
  }
  static Array square(double value) { return Array({1, 1}, {value}); }
  static std::optional<Array> given(std::initializer_list<double> data) { return Array(data); }

  /// From `y` on, with a gradient of ones.
  static void backward(const Array& y) {
    reference::backward(y, Array(y.shape(), std::vector<double>(y.size(), 1)), GetParam());
  }
  void step() { backward(run("neg", {x})); }
  void linear_step() { backward(run("linear", {leaf(square(2)), leaf(square(3)), leaf(square(4))})); }
  /// What one step leaves in x.
  std::optional<Array> gradient_of_step() {
    reference::clear_gradient(x);
    step();
    return gradient(x);
  }
};

INSTANTIATE_TEST_SUITE_P(Nodes, BackwardTest, ::testing::Values(NodesRun::kInCore, NodesRun::kBetweenHooks),
                         [](const auto& how) { return how.param == NodesRun::kInCore ? "InCore" : "BetweenHooks"; });

/// An operator's name, forward or backward.
std::string name(const OpContext& op) { return op.is_backward() ? op.backward_op()->name : op.op().name; }

// ---- order ----------------------------------------------------------------------------------------------------------

TEST_P(BackwardTest, BackwardOperatorsAreAnalysedOnceAndActedOnEachTime) {
  apply({tool("a").backward().tells_analysis()});
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(trace(),
            "neg a? a< NegBackward a> AccumulateGrad "
            "neg a< NegBackward a> AccumulateGrad neg a< NegBackward a> AccumulateGrad");
  EXPECT_EQ(gradient(x), given({-3, -3}));
}

TEST_P(BackwardTest, DependenciesComeFirstBeforeAndAfterAlike) {
  apply({tool("c").after("b").backward().tells_analysis(), tool("b").after("a").backward().tells_analysis(),
         tool("a").backward().tells_analysis()});
  step();
  EXPECT_EQ(trace(), "neg a? b? c? a< b< c< NegBackward a> b> c> AccumulateGrad");
}

TEST_P(BackwardTest, ForwardAndBackwardRoutinesOfOneToolAreToldApart) {
  tool("a").does([&](OpContext& op) { note(op.is_forward() ? "forward?" : "wrong"); });
  tool("a").does([&](OpContext& op) { note(op.is_backward() ? name(op) + "?" : "wrong"); }, {.backward = true});
  apply({tool("a")});
  step();
  EXPECT_EQ(trace(), "forward? neg NegBackward? NegBackward AccumulateGrad? AccumulateGrad");
}

TEST_P(BackwardTest, ATapeThatIsRunAgainIsObservedAgain) {
  apply({tool("a").backward().tells_analysis()});
  const Array y = run("neg", {x});
  backward(y);
  backward(y);
  EXPECT_EQ(trace(), "neg a? a< NegBackward a> AccumulateGrad a< NegBackward a> AccumulateGrad");
}

TEST_P(BackwardTest, RoutinesOfOneExecutionShareARun) {
  tool("a").does(
      [&](OpContext& op) {
        op.insert_before_backward_op([](Values& values) { ++values.run<int>(); });
        op.insert_after_backward_op([&](Values& values) { note(std::to_string(++values.run<int>())); });
      },
      {.backward = true, .ops = {"neg"}});
  apply({tool("a")});
  step();
  step();
  EXPECT_EQ(trace(), "neg NegBackward 2 AccumulateGrad 2 neg NegBackward 2 AccumulateGrad 2");
}

// ---- values ---------------------------------------------------------------------------------------------------------

TEST_P(BackwardTest, ABeforeActionEditsWhatComesIn) {
  const Operand other = Array{5, 7};
  tool("a").does(
      [&](OpContext& op) {
        op.insert_before_backward_op([&](Values& values) {
          EXPECT_EQ(input(values), (Array{1, 1}));
          values.set(0, reference::value(other));
        });
      },
      {.backward = true, .ops = {"mul*"}});
  apply({tool("a"), tool("b").backward()});
  const Array y = run("neg", {x});
  backward(run("mul.scalar", {y, 2.0}));
  EXPECT_EQ(gradient(x), given({-10, -14}));
}

TEST_P(BackwardTest, AnAfterActionEditsWhatFlowsOn) {
  const Operand mask = Array{0, 9};
  tool("a").does(
      [&](OpContext& op) {
        if (!op.site().made_by_forward()) return;
        op.insert_after_backward_op(
            [&](Values& values) {
              EXPECT_EQ(values.position(0), 1u);
              values.set(0, reference::value(mask));
            },
            {.grad_inputs = {1}});
      },
      {.backward = true});
  apply({tool("a")});
  const Array w = leaf({3, 4});
  backward(run("mul", {x, w}));
  EXPECT_EQ(gradient(x), given({3, 4}));
  EXPECT_EQ(gradient(w), given({0, 9}));
}

TEST_P(BackwardTest, AnUndefinedGradientIsNullAndMayBeDefined) {
  const Operand ones = Array{1};
  tool("a").does(
      [&](OpContext& op) {
        EXPECT_EQ(op.num_grad_outputs(), 2u);
        EXPECT_EQ(op.grad_output(0).ref, nullptr);
        EXPECT_EQ(reference::array(op.grad_output(1)), (Array{1}));
        op.insert_before_backward_op([&](Values& values) {
          EXPECT_EQ(values[0].ref, nullptr);
          values.set(0, reference::value(ones));
        });
      },
      {.backward = true, .ops = {"split"}});
  apply({tool("a")});
  backward(run("split", {run("neg", {x})}, 1));
  EXPECT_EQ(gradient(x), given({-1, -1}));
}

TEST_P(BackwardTest, AGradientMayBeMadeUndefined) {
  tool("a").does([&](OpContext& op) { op.insert_before_backward_op([](Values& values) { values.set(0, {}); }); },
                 {.backward = true, .ops = {"neg"}});
  apply({tool("a"), tool("b").backward()});
  step();
  EXPECT_EQ(gradient(x), std::nullopt);
  EXPECT_EQ(trace(), "neg b< NegBackward b> AccumulateGrad");
}

TEST_P(BackwardTest, AnalysisSeesTheProgramsGradientsNotTheEdited) {
  const Operand other = Array{5, 7};
  tool("a").does(
      [&](OpContext& op) {
        if (!op.site().made_by_forward()) return;
        op.insert_before_backward_op([&](Values& values) { values.set(0, reference::value(other)); });
        op.insert_after_backward_op([&](Values& values) { values.set(0, reference::value(other)); });
      },
      {.backward = true});
  tool("b").does(
      [&](OpContext& op) {
        if (!op.site().made_by_forward()) return;
        note("b?");
        EXPECT_EQ(reference::array(op.grad_output(0)), (Array{1, 1}));
        ASSERT_EQ(op.num_grad_inputs(), 1u);
        EXPECT_EQ(reference::array(op.grad_input(0)), (Array{-5, -7}));  // of what ran, before the after-actions
      },
      {.backward = true, .require_outputs = true});
  apply({tool("a"), tool("b")});
  step();
  EXPECT_EQ(trace(), "neg NegBackward b? AccumulateGrad");
}

TEST_P(BackwardTest, ABeforeActionOfAnOutputAnalysisRunsFromTheNextTimeOn) {
  tool("a").does(
      [&](OpContext& op) {
        tool("a").say("?");
        op.insert_before_backward_op([&](Values&) { tool("a").say("<"); });
        op.insert_after_backward_op([&](Values&) { tool("a").say(">"); });
      },
      {.backward = true, .require_outputs = true, .ops = {"mul*"}});
  apply({tool("a")});
  const Array y = run("neg", {x});
  for (int i = 0; i < 2; ++i) backward(run("mul.scalar", {y, 2.0}));
  EXPECT_EQ(trace(),
            "neg mul MulBackward a? a> NegBackward AccumulateGrad mul a< MulBackward a> NegBackward AccumulateGrad");
}

TEST_P(BackwardTest, ALeafsNodeBelongsToItsFirstUser) {
  const Operand other = Array{5, 7};
  tool("a").does(
      [&](OpContext& op) {
        note(name(op) + "(" + op.op().name + ")");
        if (op.site().made_by_forward()) return;
        op.insert_before_backward_op([&](Values& values) { values.set(0, reference::value(other)); });
        op.insert_after_backward_op([&](Values& values) {
          EXPECT_EQ(values.size(), 0u);
          EXPECT_EQ(gradient(x), given({5, 7}));
        });
      },
      {.backward = true});
  apply({tool("a")});
  backward(run("add", {run("neg", {x}), run("relu", {x})}));
  EXPECT_EQ(trace(),
            "neg relu add AddBackward(add) AddBackward ReluBackward(relu) ReluBackward NegBackward(neg) NegBackward "
            "AccumulateGrad(neg) AccumulateGrad");
}

// ---- contexts -------------------------------------------------------------------------------------------------------

TEST_P(BackwardTest, AContextTellsOfBothOperators) {
  OpId forward_id = 0, backward_id = 0;
  const Array w = leaf({3, 4});
  tool("a").does([&](OpContext& op) {
    forward_id = op.op_id();
    EXPECT_FALSE(op.is_backward());
    EXPECT_EQ(op.backward_op(), nullptr);
    EXPECT_EQ(op.backward_op_id(), 0u);
    EXPECT_EQ(op.num_grad_outputs(), 0u);
    EXPECT_EQ(error_of([&] { op.grad_output(0); }), "[context] a forward operator has no grad_outputs");
  });
  tool("a").does(
      [&](OpContext& op) {
        if (!op.site().made_by_forward()) return;
        note("a?");
        backward_id = op.backward_op_id();
        EXPECT_TRUE(op.is_backward());
        EXPECT_EQ(op.op().name, "mul");
        EXPECT_EQ(op.op_id(), forward_id);
        EXPECT_EQ(op.backward_op()->name, "MulBackward");
        EXPECT_EQ(op.module_path(), "here");
        ASSERT_EQ(op.num_inputs(), 2u);
        EXPECT_EQ(op.input(0).ref, nullptr);  // the program let go of it
        EXPECT_EQ(reference::array(op.input(1)), w);
        EXPECT_TRUE(op.has_outputs());
        EXPECT_EQ(reference::array(op.output(0)), (Array{-3, 8}));
        EXPECT_FALSE(op.has_grad_inputs());
        EXPECT_EQ(op.num_grad_inputs(), 0u);
        EXPECT_EQ(error_of([&] { op.grad_input(0); }),
                  "[context] grad_inputs are there only in a backward analysis registered with require_outputs");
      },
      {.backward = true, .ops = {"mul"}});
  tool("a").does([](OpContext&) {}, {.backward = true});
  apply({tool("a")});
  Place here("here");
  const Array y = run("mul", {run("neg", {x}), w});
  backward(y);
  EXPECT_EQ(trace(), "neg mul a? MulBackward AccumulateGrad NegBackward AccumulateGrad");
  EXPECT_NE(backward_id, 0u);
  EXPECT_NE(backward_id, forward_id);
}

TEST_P(BackwardTest, AContextStartsWithItsForwardOperatorsKeysAndKeepsItsOwn) {
  auto seen = [](const OpContext& op) {
    std::string keys;
    for (const auto& [key, value] : op.keys()) keys += key + " ";
    return keys;
  };
  tool("a").does([&](OpContext& op) {
    note(seen(op) + "|");
    op.set("mask", 1);
  });
  tool("a").does(
      [&](OpContext& op) {
        note(seen(op) + "|");
        op.set("seen", 1);
      },
      {.backward = true, .ops = {"neg"}});
  tool("b").does([&](OpContext& op) { note("b: " + seen(op) + "|"); }, {.backward = true, .ops = {"mul*"}});
  apply({tool("a"), tool("b")});
  Switch off = cache_disabled();
  const Array y = run("neg", {x});
  trace();
  backward(y);
  EXPECT_EQ(trace(), "mask | NegBackward mask | AccumulateGrad");  // two backward operators, each with its own
  backward(y);
  EXPECT_EQ(trace(), "mask seen | NegBackward mask seen | AccumulateGrad");
  backward(run("mul.scalar", {run("neg", {x}), 2.0}));
  EXPECT_EQ(trace(), "mask | neg | mul b: mask | MulBackward mask seen | NegBackward mask seen | AccumulateGrad");
}

TEST_P(BackwardTest, ToolsOfAScopeShareABackwardContextAndInnerScopesStartWithACopy) {
  auto writes = [&](const std::string& key, const std::string& reads) {
    return [=, this](OpContext& op) {
      if (!op.site().made_by_forward()) return;
      note(key + (op.get<bool>(reads) ? " sees " : " misses ") + reads);
      op.set(key, true);
    };
  };
  tool("a").does(writes("a", "b"), {.backward = true});
  tool("b").does(writes("b", "a"), {.backward = true});
  tool("c").does(writes("c", "b"), {.backward = true});
  apply({tool("a"), tool("b")});
  apply({tool("c")});
  step();
  EXPECT_EQ(trace(), "neg a misses b b sees a c sees b NegBackward AccumulateGrad");
  Switch off = cache_disabled();
  step();
  EXPECT_EQ(trace(), "neg a sees b b sees a c sees b NegBackward AccumulateGrad");
}

// ---- actions scheduled forwards -------------------------------------------------------------------------------------

TEST_P(BackwardTest, AForwardAnalysisSchedulesOnEachNodeThatHasThePositions) {
  auto says = [&](const std::string& word) { return [&, word](Values&) { note(word); }; };
  tool("a").does(
      [&](OpContext& op) {
        op.insert_before_backward_op(says("a<"));
        op.insert_before_backward_op(says("second<"), {.grad_outputs = {1}});
        op.insert_after_backward_op(says("second>"), {.grad_inputs = {1}});
        op.insert_after_backward_op(says("third>"), {.grad_inputs = {2}});
      },
      {.ops = {"linear", "split", "neg"}});
  apply({tool("a")});
  linear_step();
  EXPECT_EQ(trace(),
            "linear matmul add a< AddBackward second> AccumulateGrad a< MatmulBackward second> AccumulateGrad "
            "AccumulateGrad");
  backward(run("split", {x}));
  EXPECT_EQ(trace(), "split a< second< SplitBackward AccumulateGrad");
  step();
  EXPECT_EQ(trace(), "neg a< NegBackward AccumulateGrad");
}

TEST_P(BackwardTest, ANodeWithAnotherNumberOfGradientsIsAnotherOperator) {
  tool("a").does([&](OpContext& op) {
    op.insert_after_backward_op(
        [&](Values& values) { note("third is " + reference::to_string(input(values).shape())); }, {.grad_inputs = {2}});
  });
  apply({tool("a")});
  for (size_t count : {3, 2, 3}) backward(run("concat", {std::vector<Array>(count, leaf({1}))}));
  EXPECT_EQ(trace(),
            "concat ConcatBackward third is [1] AccumulateGrad concat ConcatBackward AccumulateGrad "
            "concat ConcatBackward third is [1] AccumulateGrad");
}

TEST_P(BackwardTest, ForwardAndBackwardAnalysesOfOneToolMeetAtANode) {
  tool("a").does([&](OpContext& op) { op.insert_before_backward_op([&](Values&) { note("from forward"); }); });
  apply({tool("a"), tool("b").backward()});
  tool("a").does([&](OpContext& op) { op.insert_before_backward_op([&](Values&) { note("from backward"); }); },
                 {.backward = true, .ops = {"mul*"}});
  backward(run("mul.scalar", {run("neg", {x}), 2.0}));
  EXPECT_EQ(trace(),
            "neg mul from forward from backward b< MulBackward b> from forward b< NegBackward b> AccumulateGrad");
}

TEST_P(BackwardTest, AnActionScheduledAfterTheOperatorRanGoesToItsNodesToo) {
  tool("a").does([&](OpContext& op) { op.insert_before_backward_op([&](Values&) { note("a<"); }); },
                 {.require_outputs = true});
  apply({tool("a")});
  step();
  step();
  EXPECT_EQ(trace(), "neg a< NegBackward AccumulateGrad neg a< NegBackward AccumulateGrad");
}

// ---- who sees what --------------------------------------------------------------------------------------------------

TEST_P(BackwardTest, OpsNamesTheForwardOperator) {
  apply({tool("a").asks({"mul"}).backward(), tool("b").asks({"NegBackward"}).backward()});
  backward(run("mul.scalar", {run("neg", {x}), 2.0}));
  EXPECT_EQ(trace(), "neg mul a< MulBackward a> NegBackward AccumulateGrad");
}

TEST_P(BackwardTest, ToolsThatSeeDifferentOperatorsOwnTheSameNodes) {
  std::map<std::string, OpId> ids;
  auto tells = [&](OpContext& op) {
    const std::string what = name(op) + "(" + op.op().name + ")";
    ids[what] = op.backward_op_id();
    op.insert_before_backward_op([&, what](Values&) { note(what); });
  };
  tool("a").does(tells, {.backward = true, .ops = {"linear"}});
  tool("b").does(tells, {.backward = true, .ops = {"matmul"}});
  apply({tool("b"), tool("a")});
  linear_step();
  EXPECT_EQ(trace(),
            "linear matmul add AddBackward(linear) AddBackward AccumulateGrad(linear) AccumulateGrad "
            "MatmulBackward(linear) MatmulBackward(matmul) MatmulBackward "
            "AccumulateGrad(linear) AccumulateGrad(matmul) AccumulateGrad "
            "AccumulateGrad(linear) AccumulateGrad(matmul) AccumulateGrad");
  EXPECT_NE(ids["MatmulBackward(linear)"], ids["MatmulBackward(matmul)"]);
}

TEST_P(BackwardTest, AToolSeesTheNodesOfTheOutermostOperatorItAskedForUnlessNested) {
  apply({tool("a").asks({"linear", "matmul"}).backward(), tool("b").asks({"linear", "matmul"}).nested().backward()});
  linear_step();
  EXPECT_EQ(trace(),
            "linear matmul add a< b< AddBackward a> b> AccumulateGrad a< b< b< MatmulBackward b> a> b> "
            "AccumulateGrad AccumulateGrad");
}

TEST_P(BackwardTest, OnDemandRoutinesSeeWhatTheirDependentsAskFor) {
  tool("b").after("a").asks({"mul"}).backward();
  apply({tool("a").asks(OpFilter::on_demand()).backward(), tool("b"), tool("c").asks({"neg"}).backward()});
  backward(run("mul.scalar", {run("neg", {x}), 2.0}));
  EXPECT_EQ(trace(), "neg mul a< b< MulBackward a> b> c< NegBackward c> AccumulateGrad");
}

TEST_P(BackwardTest, OperatorsThatAGradientRuleRunsAreNoPartsOfTheNode) {
  reference::define({.info = {"test", "recomputes", "", {"a"}, {"result"}, ""},
                     .kernel = [](const Operands& in) { return reference::call("neg", in); },
                     .differentiate =
                         [](const Operands&, const Operands&) {
                           return [](const reference::Gradients& in) {
                             return reference::Gradients{reference::call("neg", {*in[0]})[0]};
                           };
                         }});
  apply({tool("a").backward(), tool("b")});
  backward(run("recomputes", {x}));
  EXPECT_EQ(trace(), "b< recomputes neg b> a< RecomputesBackward b< neg b> a> AccumulateGrad");
}

TEST_P(BackwardTest, WhatRoutinesRunIsNotObserved) {
  const Array other = leaf({3, 4});
  const Array tape = run("neg", {other});
  tool("a").does(
      [&](OpContext& op) {
        op.insert_before_backward_op([&](Values& values) {
          reference::call("relu", {input(values)});
          backward(tape);
        });
      },
      {.ops = {"neg"}});
  apply({tool("b").backward(), tool("c"), tool("a")});
  step();
  EXPECT_EQ(trace(), "neg c< neg c> b< relu NegBackward AccumulateGrad NegBackward b> AccumulateGrad");
  EXPECT_EQ(gradient(other), given({-1, -1}));
}

TEST_P(BackwardTest, NodesThatADifferentiableRoutineMakesAreNotTheOperators) {
  auto doubles = [](Values& values) {
    const Operands doubled = reference::call("mul.scalar", {input(values), 2.0});
    values.set(0, reference::value(doubled[0]));
  };
  tool("a").does([&](OpContext& op) {
    op.insert_before_op(doubles, {.differentiable = true});
    op.insert_after_op(doubles, {.differentiable = true});
  });
  apply({tool("a"), tool("b").backward()});
  EXPECT_EQ(gradient_of_step(), given({-4, -4}));
  EXPECT_EQ(trace(), "mul neg mul MulBackward b< NegBackward b> MulBackward AccumulateGrad");
}

TEST_P(BackwardTest, NodesThatAReplacementMakesAreTheOperators) {
  tool("a").does([](OpContext& op) {
    op.replace_op([](Values& values) {
      const Operands product = reference::call("mul", {input(values), input(values)});
      values.set_result(0, reference::value(product[0]));
    });
  });
  apply({tool("a"), tool("b").backward()});
  EXPECT_EQ(gradient_of_step(), given({2, -4}));
  EXPECT_EQ(trace(), "mul b< MulBackward b> AccumulateGrad");
}

TEST_P(BackwardTest, ALeafWhoseValueIsEditedStillBelongsToTheOperator) {
  const Operand other = Array{0, 0};
  tool("a").does(
      [&](OpContext& op) { op.insert_before_op([&](Values& values) { values.set(0, reference::value(other)); }); });
  tool("b").does([&](OpContext& op) { note(name(op) + "?"); }, {.backward = true});
  apply({tool("a"), tool("b")});
  step();
  EXPECT_EQ(trace(), "neg NegBackward? NegBackward AccumulateGrad? AccumulateGrad");
}

// ---- the cache ------------------------------------------------------------------------------------------------------

TEST_P(BackwardTest, WithoutTheCacheEachRunIsAnalysed) {
  apply({tool("a").backward().tells_analysis()});
  Switch off = cache_disabled();
  step();
  step();
  EXPECT_EQ(trace(), "neg a? a< NegBackward a> AccumulateGrad neg a? a< NegBackward a> AccumulateGrad");
}

TEST_P(BackwardTest, AnOperatorWithoutAnIdIsAnalysedEachTime) {
  apply({tool("a").backward().tells_analysis()});
  Place nowhere = Place::nowhere();
  step();
  step();
  EXPECT_EQ(trace(), "neg a? a< NegBackward a> AccumulateGrad neg a? a< NegBackward a> AccumulateGrad");
}

TEST_P(BackwardTest, ClearingTheCacheForgetsBackwardOperatorsToo) {
  Scope& scope = apply({tool("a").backward().tells_analysis()});
  step();
  scope.cache_clear();
  step();
  EXPECT_EQ(trace(), "neg a? a< NegBackward a> AccumulateGrad neg a? a< NegBackward a> AccumulateGrad");
}

TEST_P(BackwardTest, ARemovedActionRunsNoMore) {
  std::vector<Action> actions;
  auto schedules = [&](const std::string& word) {
    return [&, word](OpContext& op) {
      actions.push_back(op.insert_before_backward_op([&, word](Values&) { note(word); }));
    };
  };
  tool("a").does(schedules("from forward"));
  tool("a").does(schedules("from backward"), {.backward = true, .ops = {"neg"}});
  apply({tool("a")});
  const Array y = run("neg", {x});
  backward(y);
  EXPECT_EQ(trace(), "neg from forward from backward NegBackward from backward AccumulateGrad");
  ASSERT_EQ(actions.size(), 3u);
  actions[0].remove();
  backward(y);
  EXPECT_EQ(trace(), "from backward NegBackward from backward AccumulateGrad");
  actions[1].remove();
  actions[2].remove();
  backward(y);
  EXPECT_EQ(trace(), "NegBackward AccumulateGrad");
}

TEST_P(BackwardTest, ARoutineThatIsAddedLaterSeesOperatorsAnalysedBefore) {
  apply({tool("a").backward()});
  const Array y = run("neg", {x});
  backward(y);
  tool("a").does([&](OpContext& op) { note(name(op) + "?"); }, {.backward = true});
  backward(y);
  EXPECT_EQ(trace(),
            "neg a< NegBackward a> AccumulateGrad NegBackward? a< NegBackward a> AccumulateGrad? AccumulateGrad");
}

// ---- scopes ---------------------------------------------------------------------------------------------------------

TEST_P(BackwardTest, ANodeIsObservedWhileTheScopeObjectItWasMadeInIsOpen) {
  Scope& scope = apply({tool("a").backward().tells_analysis()});
  const Array y = run("neg", {x});
  leave();
  backward(y);
  EXPECT_EQ(trace(), "neg NegBackward AccumulateGrad");
  enter(scope);
  backward(y);
  EXPECT_EQ(trace(), "a? a< NegBackward a> AccumulateGrad");
  leave();
  apply({tool("a")});  // the same tool, another scope object
  backward(y);
  EXPECT_EQ(trace(), "NegBackward AccumulateGrad");
}

TEST_P(BackwardTest, NodesMadeInAnInnerScopeAreTheOutersAfterIt) {
  apply({tool("a").backward()});
  Scope& inner = apply({tool("b").backward()});
  const Array y = run("neg", {x});
  leave();
  backward(y);
  EXPECT_EQ(trace(), "neg a< NegBackward a> AccumulateGrad");
  leave();
  enter(inner);
  backward(y);
  EXPECT_EQ(trace(), "b< NegBackward b> AccumulateGrad");
}

TEST_P(BackwardTest, NodesMadeInAnOuterScopeAreNotTheInners) {
  apply({tool("a").backward().tells_analysis()});
  const Array y = run("neg", {x});
  apply({tool("b").backward().tells_analysis()});
  backward(y);
  backward(run("neg", {x}));
  leave();
  backward(y);
  EXPECT_EQ(trace(),
            "neg a? a< NegBackward a> AccumulateGrad neg b? a< b< NegBackward a> b> AccumulateGrad "
            "a< NegBackward a> AccumulateGrad");
}

TEST_P(BackwardTest, ATapeMadeOutsideIsLeftAlone) {
  const Array y = run("neg", {x});
  apply({tool("a").backward()});
  backward(y);
  EXPECT_EQ(trace(), "neg NegBackward AccumulateGrad");
  backward(run("neg", {y}));
  EXPECT_EQ(trace(), "neg a< NegBackward a> NegBackward AccumulateGrad");
}

TEST_P(BackwardTest, ATapeOutlivesTheScopeObjectAndItsTools) {
  Array y;
  {
    Tool gone("gone");
    gone.add_inst_for_op([&](OpContext& op) { op.insert_before_backward_op([&](Values&) { note("gone<"); }); });
    Scope scope(gone);
    auto in = scope.enter();
    y = run("neg", {x});
    backward(y);
  }
  apply({tool("a").backward()});
  backward(y);
  EXPECT_EQ(trace(), "neg gone< NegBackward AccumulateGrad NegBackward AccumulateGrad");
}

TEST_P(BackwardTest, DisabledIsVanillaForwardsAndBackwards) {
  apply({tool("a").backward(), tool("b").asks({"relu"}).replaces().backward()});
  const Array y = run("relu", {run("neg", {x})});
  {
    Switch off = disabled();
    backward(y);
    EXPECT_EQ(gradient(x), given({0, -1}));
    EXPECT_EQ(trace(), "neg relu ReluBackward NegBackward AccumulateGrad");
  }
  Array unseen;
  {
    Switch off = disabled();
    unseen = run("neg", {x});
  }
  backward(unseen);
  EXPECT_EQ(trace(), "neg NegBackward AccumulateGrad");
}

// ---- replacing ------------------------------------------------------------------------------------------------------

class ReplaceBackwardTest : public BackwardTest {
 protected:
  /// What the trace says of a node that was replaced: between hooks it has run, for nothing.
  static std::string replaced(const std::string& node, const std::string& by) {
    return GetParam() == NodesRun::kInCore ? by : node + " " + by;
  }
  /// And of one that a replacement calls: between hooks it ran before.
  static std::string wrapped(const std::string& before, const std::string& node, const std::string& after) {
    return GetParam() == NodesRun::kInCore ? before + " " + node + " " + after : node + " " + before + " " + after;
  }
};
INSTANTIATE_TEST_SUITE_P(Nodes, ReplaceBackwardTest, ::testing::Values(NodesRun::kInCore, NodesRun::kBetweenHooks),
                         [](const auto& how) { return how.param == NodesRun::kInCore ? "InCore" : "BetweenHooks"; });

TEST_P(ReplaceBackwardTest, AReplacementRunsInsteadOfTheNode) {
  apply({tool("a").backward(), tool("b").replaces().backward()});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(gradient_of_step(), given({1, 1}));
    EXPECT_EQ(trace(), "neg a< " + replaced("NegBackward", "b=") + " a> AccumulateGrad");
  }
}

TEST_P(ReplaceBackwardTest, AReplacementMayCallTheNodesOwnRuleAndChangeItsResults) {
  const Operand zeros = Array{0, 0};
  tool("a").does([&](OpContext& op) {
    op.replace_backward_op([&](Values& values) {
      EXPECT_EQ(reference::routine_mode(), RoutineMode::kAmbient);
      note("(");
      values.call_original();
      note(")");
      EXPECT_EQ(values.num_results(), 2u);
      EXPECT_EQ(reference::array(values.result(0)), (Array{3, 4}));
      values.set_result(1, reference::value(zeros));
    });
  });
  apply({tool("a")});
  const Array w = leaf({3, 4});
  backward(run("mul", {x, w}));
  EXPECT_EQ(trace(), "mul " + wrapped("(", "MulBackward", ")") + " AccumulateGrad AccumulateGrad");
  EXPECT_EQ(gradient(x), given({3, 4}));
  EXPECT_EQ(gradient(w), given({0, 0}));
}

TEST_P(ReplaceBackwardTest, BeforeActionsFeedItAndAfterActionsSeeItsResult) {
  const Operand fives = Array{5, 5}, sevens = Array{7, 7};
  tool("a").does([&](OpContext& op) {
    op.insert_before_backward_op([&](Values& values) { values.set(0, reference::value(fives)); });
    op.insert_after_backward_op([&](Values& values) {
      EXPECT_EQ(input(values), (Array{5, 5}));
      values.set(0, reference::value(sevens));
    });
  });
  apply({tool("a"), tool("b").replaces().backward()});
  EXPECT_EQ(gradient_of_step(), given({7, 7}));
}

TEST_P(ReplaceBackwardTest, ResultsThatFlowSomewhereMustBeSetPerhapsToNothing) {
  bool sets = false;
  tool("a").does([&](OpContext& op) {
    op.replace_backward_op([&](Values& values) {
      if (sets) values.set_result(0, {});
    });
  });
  apply({tool("a")});
  EXPECT_EQ(error_of([&] { step(); }),
            "[action] a: a C++ routine replacing NegBackward of ref::neg: result 0 was not set");
  sets = true;
  EXPECT_EQ(gradient_of_step(), std::nullopt);
  trace();
  const Array frozen{3, 4};
  backward(run("mul", {x, frozen}));  // nothing flows to the second input
  EXPECT_EQ(gradient(x), std::nullopt);
}

TEST_P(ReplaceBackwardTest, TwoReplacementsThatKnowNothingOfEachOtherConflict) {
  apply({tool("a").replaces().backward(), tool("b").replaces().backward()});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of([&] { step(); }),
              "[plan] 'a' and 'b' both replace NegBackward of ref::neg; let one depend on the other: b.depends_on(a)");
  }
}

TEST_P(ReplaceBackwardTest, ADependentsReplacementWrapsTheOneItDependsOn) {
  tool("b").after("a").wraps().backward();
  apply({tool("a").replaces().backward(), tool("b")});
  EXPECT_EQ(gradient_of_step(), given({1, 1}));
  EXPECT_EQ(trace(), "neg " + replaced("NegBackward", "b( a= )b") + " AccumulateGrad");
}

TEST_P(ReplaceBackwardTest, AReplacementScheduledForwardsPassesOverLeaves) {
  tool("a").does([&](OpContext& op) {
    op.replace_backward_op([&](Values& values) {
      note("a=");
      values.set_result(0, values[0]);
    });
  });
  apply({tool("a")});
  EXPECT_EQ(gradient_of_step(), given({1, 1}));
  EXPECT_EQ(trace(), "neg " + replaced("NegBackward", "a=") + " AccumulateGrad");
}

TEST_P(ReplaceBackwardTest, TheReplacementOfAnOuterOperatorHidesInnerOnes) {
  apply({tool("a").asks({"linear"}).replaces().backward(), tool("b").asks({"matmul", "add"}).backward()});
  linear_step();
  const std::string events = trace();
  EXPECT_EQ(events.find("b<") == std::string::npos, GetParam() == NodesRun::kInCore) << events;
  EXPECT_NE(events.find("a="), std::string::npos) << events;
}

// ---- errors ---------------------------------------------------------------------------------------------------------

class BackwardErrorTest : public BackwardTest {
 protected:
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
INSTANTIATE_TEST_SUITE_P(Nodes, BackwardErrorTest, ::testing::Values(NodesRun::kInCore, NodesRun::kBetweenHooks),
                         [](const auto& how) { return how.param == NodesRun::kInCore ? "InCore" : "BetweenHooks"; });

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
  const std::string ran = GetParam() == NodesRun::kInCore ? "" : "NegBackward ";
  expect_clean_after("neg a< " + ran + "b=", "neg a< " + ran + "b= a> AccumulateGrad");
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
  bool fails = true;
  static bool* now;
  now = &fails;
  reference::define({.info = {"test", "fails", "", {"a"}, {"result"}, ""},
                     .kernel = [](const Operands& in) { return reference::call("neg", in); },
                     .differentiate =
                         [](const Operands&, const Operands&) {
                           return [](const reference::Gradients& in) {
                             if (*now) throw std::runtime_error("boom");
                             return in;
                           };
                         }});
  apply({tool("a").backward()}, OnError::kDisable);
  const Array y = run("fails", {x});
  EXPECT_EQ(error_of<std::runtime_error>([&] { backward(y); }), "boom");
  fails = false;
  backward(y);
  EXPECT_EQ(trace(), "fails neg a< FailsBackward a< FailsBackward a> AccumulateGrad");
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
            "[action] b: a C++ routine after NegBackward of ref::neg: it changed, in place, a tensor it was given; "
            "return a new one, or call context.may_mutate() at analysis");
  says_so = true;
  scope.cache_clear();
  EXPECT_EQ(gradient_of_step(), given({0, 9}));
}

// ---- threads --------------------------------------------------------------------------------------------------------

TEST_P(BackwardTest, ThreadsRunTapesOfTheirOwn) {
  constexpr int kThreads = 4, kPlaces = 50, kSteps = 3;
  std::atomic<int> analyses = 0, runs = 0;
  Tool counter("counter");
  counter.add_inst_for_op([&](OpContext& op) {
    op.set("mask", 1);
    op.insert_after_backward_op([&](Values&) { ++runs; });
  });
  counter.add_inst_for_op(
      [&](OpContext& op) {
        EXPECT_NE(op.get<int>("mask"), nullptr);
        ++analyses;
        op.insert_before_backward_op([&](Values&) { ++runs; });
      },
      {.backward = true});
  Scope scope(counter);
  std::barrier start(kThreads);
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      auto in = scope.enter();
      for (int place = 0; place < kPlaces; ++place) {
        Place here(std::to_string(place));
        for (int again = 0; again < kSteps; ++again) {
          const Array own = leaf({1, 2});
          backward(run("mul", {own, own}));
          EXPECT_EQ(gradient(own), given({2, 4}));
        }
      }
    });
  }
  threads.clear();
  EXPECT_EQ(analyses, kPlaces * 2);
  EXPECT_EQ(runs, kThreads * kPlaces * kSteps * 3);
}

}  // namespace
}  // namespace amanda
