// Which of nested operators a tool sees. `linear` is a composite of `matmul` and `add`.
#include "trace_test.h"

namespace amanda {
namespace {

using VisibilityTest = TraceTest;

TEST_F(VisibilityTest, AToolThatAsksForEverythingSeesTheOutermostCall) {
  apply({tool("a")});
  call("linear");
  EXPECT_EQ(trace(), "a< linear matmul add a>");
}

TEST_F(VisibilityTest, AToolThatAsksForAnInnerTypeSeesIt) {
  apply({tool("a").asks({"matmul"})});
  call("linear");
  EXPECT_EQ(trace(), "linear a< matmul a> add");
}

TEST_F(VisibilityTest, AnOuterOperatorThatIsAskedForHidesInnerOnes) {
  apply({tool("a").asks({"linear", "matmul"})});
  call("linear");
  call("matmul");
  EXPECT_EQ(trace(), "a< linear matmul add a> a< matmul a>");
}

TEST_F(VisibilityTest, WhatOtherToolsAskForChangesNothing) {
  apply({tool("a").asks({"matmul"}), tool("b"), tool("c").asks({"add"})});
  call("linear");
  EXPECT_EQ(trace(), "b< linear a< matmul a> c< add c> b>");
}

TEST_F(VisibilityTest, AnOperatorSeenWithoutActionsHidesInnerOnesToo) {
  tool("a").does([&](OpContext& op) { note(op.op().name + "?"); });
  apply({tool("a")});
  call("linear");
  call("linear");
  EXPECT_EQ(trace(), "linear? linear matmul add linear matmul add");
}

TEST_F(VisibilityTest, NestedShowsInnerOperatorsWithTheirDepth) {
  tool("a").does([&](OpContext& op) { note(op.op().name + "@" + std::to_string(op.depth())); }, {.nested = true});
  apply({tool("a")});
  call("linear");
  EXPECT_EQ(trace(), "linear@0 linear matmul@1 matmul add@1 add");
}

TEST_F(VisibilityTest, NestedActionsRunInsideTheOuterOnes) {
  apply({tool("a").nested()});
  call("linear");
  EXPECT_EQ(trace(), "a< linear a< matmul a> a< add a> a>");
}

TEST_F(VisibilityTest, DepthCountsOnlyWhatTheToolSees) {
  tool("a").does([&](OpContext& op) { note("@" + std::to_string(op.depth())); }, {.ops = {"matmul"}});
  apply({tool("b"), tool("a")});
  call("linear");
  EXPECT_EQ(trace(), "b< linear @0 matmul add b>");
}

TEST_F(VisibilityTest, ATypeNobodyAskedForIsNotAnalysed) {
  Scope& scope = apply({tool("a").asks({"mul"})});
  call("add");
  EXPECT_EQ(trace(), "add");
  EXPECT_EQ(scope.cache_info().size, 0u);
}

TEST_F(VisibilityTest, OnDemandRunsForWhatDependentsAsk) {
  tool("map").asks(OpFilter::on_demand());
  apply({tool("a").after("map").asks({"add"}), tool("b").asks({"mul"})});
  call("add");
  call("mul");
  call("sub");
  EXPECT_EQ(trace(), "map< a< add map> a> b< mul b> sub");
}

TEST_F(VisibilityTest, OnDemandFollowsChainsOfDependents) {
  tool("map").asks(OpFilter::on_demand());
  tool("mid").after("map").asks(OpFilter::on_demand());
  apply({tool("a").after("mid").asks({"matmul"})});
  call("linear");
  EXPECT_EQ(trace(), "linear map< mid< a< matmul map> mid> a> add");
}

TEST_F(VisibilityTest, OnDemandAloneSeesNothing) {
  apply({tool("map").asks(OpFilter::on_demand())});
  call("add");
  EXPECT_EQ(trace(), "add");
}

TEST_F(VisibilityTest, OnDemandServesADependentInAnInnerScope) {
  tool("map").asks(OpFilter::on_demand());
  apply({tool("map")});
  apply({tool("a").after("map").asks({"add"})});
  call("add");
  leave();
  call("add");
  EXPECT_EQ(trace(), "map< a< add map> a> add");
}

TEST_F(VisibilityTest, AnOperatorThatFailsLeavesNothingHidden) {
  apply({tool("a")});
  EXPECT_THROW(reference::call("linear", {Array{1}, Array{1}, Array{1}}), std::invalid_argument);
  trace();
  call("add");
  EXPECT_EQ(trace(), "a< add a>");
}

}  // namespace
}  // namespace amanda
