// Which backward operators belong to which forward operator, and who sees them.
#include <amanda/reference/operator.h>

#include "backward_test.h"

namespace amanda {
namespace {

using BackwardVisibilityTest = BackwardTest;
INSTANTIATE_BACKWARD_TEST(BackwardVisibilityTest);

TEST_P(BackwardVisibilityTest, OpsNamesTheForwardOperator) {
  apply({tool("a").asks({"mul"}).backward(), tool("b").asks({"NegBackward"}).backward()});
  backward(run("mul.scalar", {run("neg", {x}), 2.0}));
  EXPECT_EQ(trace(), "neg mul a< MulBackward a> NegBackward AccumulateGrad");
}

TEST_P(BackwardVisibilityTest, ToolsThatSeeDifferentOperatorsOwnTheSameNodes) {
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

TEST_P(BackwardVisibilityTest, AToolSeesTheNodesOfTheOutermostOperatorItAskedForUnlessNested) {
  apply({tool("a").asks({"linear", "matmul"}).backward(), tool("b").asks({"linear", "matmul"}).nested().backward()});
  linear_step();
  EXPECT_EQ(trace(),
            "linear matmul add a< b< AddBackward a> b> AccumulateGrad a< b< b< MatmulBackward b> a> b> "
            "AccumulateGrad AccumulateGrad");
}

TEST_P(BackwardVisibilityTest, OnDemandRoutinesSeeWhatTheirDependentsAskFor) {
  tool("b").after("a").asks({"mul"}).backward();
  apply({tool("a").asks(OpFilter::on_demand()).backward(), tool("b"), tool("c").asks({"neg"}).backward()});
  backward(run("mul.scalar", {run("neg", {x}), 2.0}));
  EXPECT_EQ(trace(), "neg mul a< b< MulBackward a> b> c< NegBackward c> AccumulateGrad");
}

TEST_P(BackwardVisibilityTest, OperatorsThatAGradientRuleRunsAreNoPartsOfTheNode) {
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

TEST_P(BackwardVisibilityTest, WhatRoutinesRunIsNotObserved) {
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

TEST_P(BackwardVisibilityTest, NodesThatADifferentiableRoutineMakesAreNotTheOperators) {
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

TEST_P(BackwardVisibilityTest, NodesThatAReplacementMakesAreTheOperators) {
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

TEST_P(BackwardVisibilityTest, ALeafWhoseValueIsEditedStillBelongsToTheOperator) {
  const Operand other = Array{0, 0};
  tool("a").does(
      [&](OpContext& op) { op.insert_before_op([&](Values& values) { values.set(0, reference::value(other)); }); });
  tool("b").does([&](OpContext& op) { note(name(op) + "?"); }, {.backward = true});
  apply({tool("a"), tool("b")});
  step();
  EXPECT_EQ(trace(), "neg NegBackward? NegBackward AccumulateGrad? AccumulateGrad");
}

}  // namespace
}  // namespace amanda
