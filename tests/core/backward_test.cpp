// Backward operators: when they are seen, what of them, and with what keys.
#include "backward_test.h"

namespace amanda {
namespace {

INSTANTIATE_BACKWARD_TEST(BackwardTest);

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
        EXPECT_EQ(op.input(0).ref, nullptr);  // the program released it
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

TEST_P(BackwardTest, AnInnerScopesBackwardContextStartsWithTheOuterForwardKeys) {
  tool("a").does([](OpContext& op) { op.set("mask", 1); });
  tool("b").does([&](OpContext& op) { note(op.get<int>("mask") ? "mask" : "nothing"); },
                 {.backward = true, .ops = {"neg"}});
  apply({tool("a")});
  apply({tool("b")});
  step();
  EXPECT_EQ(trace(), "neg mask NegBackward mask AccumulateGrad");
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

}  // namespace
}  // namespace amanda
