// In which order the tools of a scope run.
#include "trace_test.h"

namespace amanda {
namespace {

using OrderTest = TraceTest;

TEST_F(OrderTest, AToolRunsBeforeAndAfterTheOperator) {
  apply({tool("a")});
  EXPECT_EQ(call("add"), (Array{4, 2}));
  EXPECT_EQ(trace(), "a< add a>");
}

TEST_F(OrderTest, WithoutAScopeNothingIsSeen) {
  call("add");
  EXPECT_EQ(trace(), "add");
}

TEST_F(OrderTest, ToolsRunInTheOrderTheyAreApplied) {
  apply({tool("b"), tool("a"), tool("c")});
  call("add");
  EXPECT_EQ(trace(), "b< a< c< add b> a> c>");
}

TEST_F(OrderTest, DependencyRunsFirstOnBothSides) {
  apply({tool("b").after("a"), tool("a")});
  call("add");
  EXPECT_EQ(trace(), "a< b< add a> b>");
}

TEST_F(OrderTest, ApplyingAToolAppliesWhatItDependsOn) {
  tool("b").after("a");
  Scope& scope = apply({tool("c").after("b")});
  call("add");
  EXPECT_EQ(trace(), "a< b< c< add a> b> c>");
  EXPECT_EQ(scope.tools(), (std::vector<Tool*>{&tool("a"), &tool("b"), &tool("c")}));
}

TEST_F(OrderTest, ADependencySharedByTwoToolsRunsOnce) {
  apply({tool("b").after("a"), tool("c").after("a"), tool("a")});
  call("add");
  EXPECT_EQ(trace(), "a< b< c< add a> b> c>");
}

TEST_F(OrderTest, AnalysisFollowsTheSameOrder) {
  tool("a").tells_analysis();
  apply({tool("b").after("a").tells_analysis()});
  call("add");
  EXPECT_EQ(trace(), "a? b? a< b< add a> b>");
}

TEST_F(OrderTest, ACycleIsReportedWhenTheScopeIsMade) {
  tool("weights").after("prune");
  tool("prune").after("weights");
  EXPECT_EQ(error_of([&] { scope({tool("prune")}); }),
            "[resolve] dependency cycle: prune -> weights -> prune; take out one of these depends_on");
}

TEST_F(OrderTest, AToolThatDependsOnItselfIsACycle) {
  tool("a").after("a");
  EXPECT_EQ(error_of([&] { scope({tool("a")}); }),
            "[resolve] dependency cycle: a -> a; take out one of these depends_on");
}

TEST_F(OrderTest, ActionsOfOneToolRunAsTheyWereScheduled) {
  tool("a").does([&](OpContext& op) {
    op.insert_before_op([&](Values&) { note("first"); });
    op.insert_before_op([&](Values&) { note("second"); });
  });
  apply({tool("a")});
  call("add");
  EXPECT_EQ(trace(), "first second add");
}

}  // namespace
}  // namespace amanda
