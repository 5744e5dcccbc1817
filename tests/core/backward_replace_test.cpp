// Tools that put themselves in the place of a backward operator.
#include "backward_test.h"

namespace amanda {
namespace {

class ReplaceBackwardTest : public BackwardTest {};
INSTANTIATE_BACKWARD_TEST(ReplaceBackwardTest);

TEST_P(ReplaceBackwardTest, AReplacementRunsInsteadOfTheNode) {
  apply({tool("a").backward(), tool("b").replaces().backward()});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(gradient_of_step(), given({1, 1}));
    EXPECT_EQ(trace(), "neg a< b= a> AccumulateGrad");
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
  EXPECT_EQ(trace(), "mul ( MulBackward ) AccumulateGrad AccumulateGrad");
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

TEST_P(ReplaceBackwardTest, ARemovedReplacementConflictsNoMore) {
  Action first;
  tool("a").does([&](OpContext& op) { first = op.replace_backward_op([](Values&) {}); });
  apply({tool("a"), tool("b").replaces().backward()});
  EXPECT_THROW(step(), Error);
  first.remove();
  EXPECT_EQ(gradient_of_step(), given({1, 1}));
}

TEST_P(ReplaceBackwardTest, ADependentsReplacementWrapsTheOneItDependsOn) {
  tool("b").after("a").wraps().backward();
  apply({tool("a").replaces().backward(), tool("b")});
  EXPECT_EQ(gradient_of_step(), given({1, 1}));
  EXPECT_EQ(trace(), "neg b( a= )b AccumulateGrad");
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
  EXPECT_EQ(trace(), "neg a= AccumulateGrad");
}

TEST_P(ReplaceBackwardTest, TheReplacementOfAnOuterOperatorHidesInnerOnes) {
  apply({tool("a").asks({"linear"}).replaces().backward(), tool("b").asks({"matmul", "add"}).backward()});
  linear_step();
  const std::string events = trace();
  EXPECT_EQ(events.find("b<"), std::string::npos) << events;
  EXPECT_NE(events.find("a="), std::string::npos) << events;
}

}  // namespace
}  // namespace amanda
