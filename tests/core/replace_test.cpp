// Tools that put themselves in the operator's place.
#include "amanda/own_results.h"
#include "trace_test.h"

namespace amanda {
namespace {

using ReplaceTest = TraceTest;

TEST_F(ReplaceTest, AReplacementRunsInsteadOfTheOperator) {
  apply({tool("a").replaces()});
  EXPECT_EQ(call("add"), (Array{1, -2}));
  EXPECT_EQ(trace(), "a=");
}

TEST_F(ReplaceTest, BeforeActionsFeedItAndAfterActionsSeeItsResult) {
  const Operand tens = Array{10, 10};
  tool("a").does([&](OpContext& op) {
    op.insert_before_op([&](Values& values) { values.set(0, reference::value(tens)); });
    op.insert_after_op([&](Values& values) { EXPECT_EQ(input(values), (Array{10, 10})); });
  });
  apply({tool("a"), tool("b").replaces()});
  EXPECT_EQ(call("add"), (Array{10, 10}));
  EXPECT_EQ(trace(), "b=");
}

TEST_F(ReplaceTest, AReplacementMayCallTheOriginalAndKeepItsResult) {
  apply({tool("a").wraps()});
  EXPECT_EQ(call("add"), (Array{4, 2}));
  EXPECT_EQ(trace(), "a( add )a");
}

TEST_F(ReplaceTest, AReplacementMayChangeTheResultOfTheOriginal) {
  const Operand tens = Array{10, 10};
  tool("a").does([&](OpContext& op) {
    op.replace_op([&](Values& values) {
      EXPECT_EQ(values.num_results(), 2u);
      values.call_original();
      EXPECT_EQ(reference::array(values.result(0)), (Array{1}));
      values.set_result(1, reference::value(tens));
    });
  });
  apply({tool("a")});
  EXPECT_EQ(reference::call("split", {Array{1, 2}}), (Operands{Array{1}, Array{10, 10}}));
}

TEST_F(ReplaceTest, AReplacementSetsAllResults) {
  tool("a").does([&](OpContext& op) { op.replace_op([&](Values& values) { values.set_result(0, values[0]); }); });
  apply({tool("a")});
  EXPECT_EQ(error_of([&] { call("split"); }),
            "[action] a: a C++ routine replacing ref::split: result 1 (second) was not set");
}

TEST_F(ReplaceTest, ARoutineAfterTheOperatorKnowsWhoseResultsItSees) {
  const Operand tens = Array{10, 10};
  std::vector<bool> own;
  const auto ask = [&](OpContext& op) {
    op.insert_after_op([&](Values& values) { own.push_back(has_own_results(values)); });
  };
  const auto edit_input = [&](OpContext& op) {
    op.insert_before_op([&](Values& values) { values.set(0, reference::value(tens)); });
  };
  const auto edit_result = [&](OpContext& op) {
    op.insert_after_op([&](Values& values) { values.set(0, reference::value(tens)); });
  };
  tool("asks").does(ask);
  tool("edits inputs").does(edit_input);
  tool("edits results").does(edit_result);
  tool("asks again").does(ask);
  apply({tool("asks"), tool("edits inputs"), tool("edits results"), tool("asks again")});
  call("add");
  EXPECT_EQ(own, (std::vector<bool>{true, false}));

  own.clear();
  apply({tool("replaces").replaces()});
  call("add");
  EXPECT_EQ(own, (std::vector<bool>{false, false}));
}

TEST_F(ReplaceTest, TheOriginalIsCalledOnce) {
  tool("a").does([&](OpContext& op) {
    op.replace_op([&](Values& values) {
      values.call_original();
      values.call_original();
    });
  });
  apply({tool("a")});
  EXPECT_EQ(error_of([&] { call("add"); }),
            "[action] a: a C++ routine replacing ref::add: call_original() was called twice");
}

TEST_F(ReplaceTest, ResultsOfAnOriginalThatDidNotRunAreRefused) {
  tool("a").does([&](OpContext& op) { op.replace_op([&](Values& values) { values.result(0); }); });
  apply({tool("a")});
  EXPECT_EQ(error_of([&] { call("add"); }),
            "[action] a: a C++ routine replacing ref::add: result() works in a replacement, after call_original()");
}

TEST_F(ReplaceTest, WhatAReplacementRunsIsNotObservedAndNeitherAreTheInsidesOfTheOriginal) {
  tool("b").asks({"linear"}).wraps();
  apply({tool("a").asks({"matmul", "neg"}), tool("b")});
  call("linear");
  EXPECT_EQ(trace(), "b( linear matmul add )b");
}

TEST_F(ReplaceTest, AReplacementRunsInAmbientMode) {
  tool("a").does([&](OpContext& op) {
    op.replace_op([&](Values& values) {
      EXPECT_EQ(reference::routine_mode(), RoutineMode::kAmbient);
      values.call_original();
    });
  });
  apply({tool("a")});
  call("add");
}

TEST_F(ReplaceTest, ADependentsReplacementWrapsTheOneItDependsOn) {
  tool("b").after("a").wraps();
  tool("c").after("b").wraps();
  apply({tool("a").replaces(), tool("c")});
  EXPECT_EQ(call("add"), (Array{1, -2}));
  EXPECT_EQ(trace(), "c( b( a= )b )c");
}

TEST_F(ReplaceTest, AnInnermostWrapperReachesTheOperator) {
  tool("b").after("a").wraps();
  apply({tool("a").wraps(), tool("b")});
  EXPECT_EQ(call("add"), (Array{4, 2}));
  EXPECT_EQ(trace(), "b( a( add )a )b");
}

TEST_F(ReplaceTest, AnOuterReplacementMayIgnoreTheOneItWraps) {
  tool("b").after("a").replaces();
  apply({tool("a").replaces(), tool("b")});
  call("add");
  EXPECT_EQ(trace(), "b=");
}

TEST_F(ReplaceTest, AWrappedReplacementThatWasRemovedIsPassedOver) {
  Action inner;
  tool("a").does([&](OpContext& op) { inner = op.replace_op([&](Values&) { note("a="); }); });
  tool("b").after("a").does([&](OpContext& op) {
    op.replace_op([&](Values& values) {
      inner.remove();
      values.call_original();
    });
  });
  apply({tool("b")});
  EXPECT_EQ(call("add"), (Array{4, 2}));
  EXPECT_EQ(trace(), "add");
}

TEST_F(ReplaceTest, TwoReplacementsThatKnowNothingOfEachOtherConflict) {
  apply({tool("a").replaces(), tool("b").replaces()});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of([&] { call("add"); }),
              "[plan] 'a' and 'b' both replace ref::add; let one depend on the other: b.depends_on(a)");
  }
}

TEST_F(ReplaceTest, ConflictsAreFoundAcrossScopes) {
  apply({tool("a").replaces()});
  call("add");
  trace();
  apply({tool("b").replaces()});
  EXPECT_EQ(error_of([&] { call("add"); }),
            "[plan] 'a' and 'b' both replace ref::add; let one depend on the other: b.depends_on(a)");
  leave();
  call("add");
  EXPECT_EQ(trace(), "a=");
}

TEST_F(ReplaceTest, ATopOfTwoUnrelatedReplacementsDoesNotHideTheirConflict) {
  tool("c").after("a").after("b").wraps();
  apply({tool("a").replaces(), tool("b").replaces(), tool("c")});
  EXPECT_NE(error_of([&] { call("add"); }).find("'a' and 'b' both replace ref::add"), std::string::npos);
}

TEST_F(ReplaceTest, OneToolReplacesAnOperatorOnce) {
  tool("a").does([](OpContext& op) {
    for (int i = 0; i < 2; ++i) op.replace_op([](Values& values) { values.call_original(); });
  });
  apply({tool("a")});
  EXPECT_EQ(error_of([&] { call("add"); }), "[plan] 'a' replaces ref::add twice; remove() the first replacement");
}

TEST_F(ReplaceTest, ARemovedReplacementConflictsNoMore) {
  Action first;
  tool("a").does([&](OpContext& op) { first = op.replace_op([](Values&) {}); });
  apply({tool("a"), tool("b").replaces()});
  EXPECT_THROW(call("add"), Error);
  first.remove();
  call("add");
  EXPECT_EQ(trace(), "b=");
}

TEST_F(ReplaceTest, AViewIsReplacedOnlyIfItMayStopBeingOne) {
  apply({tool("a").replaces()});
  EXPECT_EQ(error_of([&] { call("flatten"); }),
            "[context] a: replace_op on ref::flatten: its result is a view, and another value would share no data; say "
            "allow_view if that will do");
  leave();
  tool("b").does([&](OpContext& op) {
    op.replace_op([&](Values& values) { values.set_result(0, values[0]); }, {.allow_view = true});
  });
  apply({tool("b")});
  EXPECT_EQ(call("flatten"), (Array{1, -2}));
}

TEST_F(ReplaceTest, EditingAndReplacingAreToldApart) {
  tool("a").does([&](OpContext& op) { op.insert_before_op([&](Values& values) { values.set_result(0, values[0]); }); });
  apply({tool("a")});
  EXPECT_EQ(error_of([&] { call("add"); }),
            "[action] a: a C++ routine before ref::add: set_result() is for replacements; use set()");
  leave();
  tool("b").does([&](OpContext& op) { op.replace_op([&](Values& values) { values.set(0, values[0]); }); });
  apply({tool("b")});
  EXPECT_EQ(error_of([&] { call("add"); }),
            "[action] b: a C++ routine replacing ref::add: set() is for inserted routines; a replacement gives its "
            "result by set_result()");
}

}  // namespace
}  // namespace amanda
