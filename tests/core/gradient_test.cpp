// The reference driver's tape: gradients against closed forms, and what forward actions do to them.
#include <amanda/reference/gradient.h>
#include <amanda/reference/graph.h>
#include <amanda/reference/operator.h>

#include "trace_test.h"

namespace amanda {
namespace {

using reference::backward;
using reference::gradient;
using reference::leaf;

class GradientTest : public TraceTest {
 protected:
  const Array a = leaf({1, -2}), b = leaf({3, 4});
  const Array seed{10, 100};

  static Array run(const std::string& op, Operands inputs, size_t result = 0) {
    return std::get<Array>(reference::call(op, std::move(inputs))[result]);
  }
  static std::optional<Array> given(std::initializer_list<double> data) { return Array(data); }
};

TEST_F(GradientTest, OfElementwiseOperators) {
  struct Case {
    std::string op;
    Operands inputs;
    std::optional<Array> of_a, of_b;
  };
  const Case cases[] = {
      {"add", {a, b}, given({10, 100}), given({10, 100})},
      {"sub", {a, b}, given({10, 100}), given({-10, -100})},
      {"mul", {a, b}, given({30, 400}), given({10, -200})},
      {"mul", {a, a}, given({20, -400}), std::nullopt},
      {"mul.scalar", {a, 5.0}, given({50, 500}), std::nullopt},
      {"neg", {a}, given({-10, -100}), std::nullopt},
      {"relu", {a}, given({10, 0}), std::nullopt},
      {"flatten", {a}, given({10, 100}), std::nullopt},
  };
  for (const Case& tried : cases) {
    backward(run(tried.op, tried.inputs), seed);
    EXPECT_EQ(gradient(a), tried.of_a) << tried.op;
    EXPECT_EQ(gradient(b), tried.of_b) << tried.op;
    clear_gradient(a);
    clear_gradient(b);
  }
}

TEST_F(GradientTest, OfASum) {
  backward(run("sum", {a}), {7});
  EXPECT_EQ(gradient(a), given({7, 7}));
}

TEST_F(GradientTest, OfMatricesAndTheOperatorsInsideAComposite) {
  const Array x = leaf(Array({1, 2}, {1, 2})), w = leaf(Array({2, 2}, {3, 4, 5, 6})),
              bias = leaf(Array({1, 2}, {7, 8}));
  backward(run("linear", {x, w, bias}), Array({1, 2}, {10, 100}));
  EXPECT_EQ(gradient(x), Array({1, 2}, {430, 650}));
  EXPECT_EQ(gradient(w), Array({2, 2}, {10, 100, 20, 200}));
  EXPECT_EQ(gradient(bias), Array({1, 2}, {10, 100}));
  EXPECT_EQ(trace(), "linear matmul add AddBackward AccumulateGrad MatmulBackward AccumulateGrad AccumulateGrad");
}

TEST_F(GradientTest, OfListsGoesToEachArray) {
  backward(run("concat", {std::vector<Array>{a, Array{0}, b}}), {1, 2, 3, 4, 5});
  EXPECT_EQ(gradient(a), given({1, 2}));
  EXPECT_EQ(gradient(b), given({4, 5}));
}

TEST_F(GradientTest, OfAResultThatIsNotUsedIsUndefined) {
  backward(run("split", {a}, 1), {7});
  EXPECT_EQ(gradient(a), given({0, 7}));
}

TEST_F(GradientTest, OfAValueUsedTwiceIsTheSum) {
  const Array twice = run("neg", {a});
  backward(run("add", {run("mul", {twice, b}), run("relu", {twice})}), seed);
  EXPECT_EQ(gradient(a), given({-30, -500}));
  EXPECT_EQ(trace(), "neg mul relu add AddBackward ReluBackward MulBackward AccumulateGrad NegBackward AccumulateGrad");
}

TEST_F(GradientTest, AddsUpOverPassesAndOneTapeMayBeRunTwice) {
  const Array y = run("neg", {a});
  backward(y, seed);
  backward(y, seed);
  EXPECT_EQ(gradient(a), given({-20, -200}));
}

TEST_F(GradientTest, OfInPlaceOperatorsReachesTheTargetsOtherHandles) {
  const Array x = run("neg", {a});
  const Array same = x;
  run("relu_", {x});
  run("add_", {x, b});
  backward(same, seed);
  EXPECT_EQ(same, (Array{3, 6}));
  EXPECT_EQ(gradient(a), given({0, -100}));
  EXPECT_EQ(gradient(b), given({10, 100}));
}

TEST_F(GradientTest, WhatCanHaveNone) {
  EXPECT_EQ(error_of<std::invalid_argument>([&] { run("relu_", {a}); }),
            "[tape] relu_ would change a leaf that requires a gradient in place");
  EXPECT_EQ(error_of<std::invalid_argument>([&] { backward(run("neg", {Array{1}}), {1}); }),
            "[tape] backward() starts at the result of an operator, on the tape");
  EXPECT_EQ(error_of<std::invalid_argument>([&] { backward(run("neg", {a}), {1}); }),
            "[tape] a gradient of shape [1] for a result of shape [2]");
  EXPECT_EQ(error_of<std::invalid_argument>([&] { leaf(run("neg", {a})); }), "[tape] an operator's result is no leaf");
  EXPECT_EQ(gradient(a), std::nullopt);
}

TEST_F(GradientTest, ALeafIsNotChangedInPlaceByAReplacementEither) {
  apply({tool("t").replaces()});
  EXPECT_EQ(error_of<std::invalid_argument>([&] { run("relu_", {a}); }),
            "[tape] relu_ would change a leaf that requires a gradient in place");
}

TEST_F(GradientTest, GradientsFlowThroughAGraphAndItsTaps) {
  const Operand tens = Array{10, 10};
  tool("t").does([&](OpContext& op) {
    op.insert_before_op([&](Values& values) { values.set(0, reference::value(tens)); }, {.inputs = {0}});
  });
  apply({tool("t")});
  reference::Graph graph;
  const auto first = graph.input(), second = graph.input();
  graph.output(graph.add("mul", {first, second}, "product")[0]);
  backward(std::get<Array>(graph.instrumented().run({a, b})[0]), seed);
  EXPECT_EQ(gradient(a), given({30, 400}));
  EXPECT_EQ(gradient(b), given({100, 1000}));
}

TEST_F(GradientTest, ARuleThatForgetsAnInputIsToldOf) {
  reference::define({.info = {"test", "forgets", "", {"a"}, {"result"}, ""},
                     .kernel = [](const Operands& in) { return in; },
                     .differentiate =
                         [](const Operands&, const Operands&) {
                           return [](const reference::Gradients&) { return reference::Gradients{}; };
                         }});
  EXPECT_EQ(error_of<std::logic_error>([&] { backward(run("forgets", {a}), seed); }),
            "[tape] ForgetsBackward gave 0 gradients for 1 arrays");
}

// ---- forward actions ------------------------------------------------------------------------------------------------

TEST_F(GradientTest, AnInsertedValueIsWhatTheOperatorSavesAndTakesOverTheEdge) {
  const Operand masked = Array{0, 5};
  tool("t").does([&](OpContext& op) {
    op.insert_before_op([&](Values& values) { values.set(0, reference::value(masked)); }, {.inputs = {0}});
  });
  apply({tool("t")});
  backward(run("mul", {a, b}), seed);
  EXPECT_EQ(gradient(a), given({30, 400}));
  EXPECT_EQ(gradient(b), given({0, 500}));
}

TEST_F(GradientTest, AnAfterActionDoesNotChangeWhatTheOperatorSaved) {
  const Operand other = Array{0, 0};
  tool("t").does(
      [&](OpContext& op) { op.insert_after_op([&](Values& values) { values.set(0, reference::value(other)); }); });
  apply({tool("t")});
  const Array y = run("relu", {a});
  EXPECT_EQ(y, (Array{0, 0}));
  backward(y, seed);
  EXPECT_EQ(gradient(a), given({10, 0}));
}

TEST_F(GradientTest, AnEditedInPlaceResultKeepsItsEdge) {
  const Operand other = Array{7, 7};
  tool("t").does(
      [&](OpContext& op) { op.insert_after_op([&](Values& values) { values.set(0, reference::value(other)); }); });
  const Array x = run("neg", {a});
  apply({tool("t")});
  run("relu_", {x});
  EXPECT_EQ(x, (Array{7, 7}));
  backward(x, seed);
  EXPECT_EQ(gradient(a), given({0, -100}));
}

TEST_F(GradientTest, AnEditedInPlaceInputKeepsItsEdge) {
  const Operand other = Array{5, -5};
  tool("t").does(
      [&](OpContext& op) { op.insert_before_op([&](Values& values) { values.set(0, reference::value(other)); }); });
  const Array x = run("neg", {a});
  apply({tool("t")});
  run("relu_", {x});
  EXPECT_EQ(x, (Array{5, 0}));
  backward(x, seed);
  EXPECT_EQ(gradient(a), given({-10, 0}));
}

TEST_F(GradientTest, OtherShapesEndTheGradient) {
  const Operand other = Array{1, 2, 3};
  tool("t").does(
      [&](OpContext& op) { op.insert_after_op([&](Values& values) { values.set(0, reference::value(other)); }); });
  apply({tool("t")});
  EXPECT_FALSE(requires_gradient(run("neg", {a})));
}

TEST_F(GradientTest, ADifferentiableRoutineIsRecordedAndAnIsolatedOneIsNot) {
  bool differentiable = true;
  tool("t").does([&](OpContext& op) {
    auto double_it = [&](Values& values) {
      const Operands doubled = reference::call("mul.scalar", {input(values), 2.0});
      EXPECT_EQ(requires_gradient(std::get<Array>(doubled[0])), differentiable);
      values.set(0, reference::value(doubled[0]));
    };
    op.insert_before_op(double_it, {.differentiable = differentiable});
  });
  {
    apply({tool("t")});
    backward(run("neg", {a}), seed);
    EXPECT_EQ(gradient(a), given({-20, -200}));
    leave();
  }
  clear_gradient(a);
  differentiable = false;
  apply({tool("t")});
  backward(run("neg", {a}), seed);
  EXPECT_EQ(gradient(a), given({-10, -100}));
}

TEST_F(GradientTest, AReplacementsOwnOperatorsAreDifferentiated) {
  tool("t").does([&](OpContext& op) {
    op.replace_op([](Values& values) {
      const Operands result = reference::call("mul", {input(values), input(values)});
      values.set_result(0, reference::value(result[0]));
    });
  });
  apply({tool("t")});
  backward(run("neg", {a}), seed);
  EXPECT_EQ(gradient(a), given({20, -400}));
}

}  // namespace
}  // namespace amanda
