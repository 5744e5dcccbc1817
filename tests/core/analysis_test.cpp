// When analysis runs, what it sees, and what it may schedule.
#include "trace_test.h"

namespace amanda {
namespace {

using AnalysisTest = TraceTest;

TEST_F(AnalysisTest, AToolHasNoNameSpace) {
  static_assert(!std::is_constructible_v<Tool, const char*, const char*>);
  apply({tool("a")});
  call("add");
  EXPECT_EQ(trace(), "a< add a>");
}

TEST_F(AnalysisTest, AnalysisRunsOncePerOperator) {
  apply({tool("a").tells_analysis()});
  call("add");
  call("add");
  EXPECT_EQ(trace(), "a? a< add a> a< add a>");
}

TEST_F(AnalysisTest, OneOperatorTypeAtTwoPlacesIsTwoOperators) {
  apply({tool("a").tells_analysis()});
  for (int i = 0; i < 2; ++i) {
    for (const char* label : {"encoder", "decoder"}) {
      Place here(label);
      call("add");
    }
  }
  EXPECT_EQ(trace(), "a? a< add a> a? a< add a> a< add a> a< add a>");
}

TEST_F(AnalysisTest, AFirstRunAnalysesAllThenActsThenRunsThenAnalysesTheOutputs) {
  for (const char* name : {"a", "b"}) {
    TraceTool& each = tool(name);
    each.does([&](OpContext& op) {
      each.say("?");
      op.insert_before_op([&](Values&) { each.say("<"); });
    });
    each.does(
        [&](OpContext& op) {
          each.say("??");
          op.insert_after_op([&](Values&) { each.say(">"); });
        },
        {.require_outputs = true});
  }
  apply({tool("a"), tool("b")});
  call("add");
  EXPECT_EQ(trace(), "a? b? a< b< add a?? b?? a> b>");
  call("add");
  EXPECT_EQ(trace(), "a< b< add a> b>");
}

TEST_F(AnalysisTest, ABeforeActionFromAnOutputAnalysisRunsFromTheNextRunOn) {
  tool("a").does([&](OpContext& op) { op.insert_before_op([&](Values&) { note("a<"); }); }, {.require_outputs = true});
  apply({tool("a")});
  call("add");
  EXPECT_EQ(trace(), "add");
  call("add");
  EXPECT_EQ(trace(), "a< add");
}

TEST_F(AnalysisTest, AReplacementFromAnOutputAnalysisRunsFromTheNextRunOn) {
  tool("a").does([&](OpContext& op) { op.replace_op([&](Values& values) { values.set_result(0, values[1]); }); },
                 {.require_outputs = true});
  apply({tool("a")});
  EXPECT_EQ(call("add"), (Array{4, 2}));
  EXPECT_EQ(call("add"), (Array{3, 4}));
}

TEST_F(AnalysisTest, AnalysisSeesTheValuesOfTheProgram) {
  const Operand edited = Array{100, 100};
  tool("edits").does([&](OpContext& op) {
    op.insert_before_op([&](Values& values) { values.set(0, reference::value(edited)); }, {.inputs = {0}});
    op.insert_after_op([&](Values& values) { values.set(0, reference::value(edited)); });
  });
  tool("looks").does([&](OpContext& op) {
    EXPECT_FALSE(op.has_outputs());
    EXPECT_EQ(op.num_outputs(), 0u);
    EXPECT_EQ(reference::array(op.input(0)), (Array{1, -2}));
  });
  tool("looks").does(
      [&](OpContext& op) {
        EXPECT_TRUE(op.has_outputs());
        EXPECT_EQ(reference::array(op.input(0)), (Array{1, -2}));
        EXPECT_EQ(reference::array(op.output(0)), (Array{103, 104}));  // of the operator, not of the after-action
        note("seen");
      },
      {.require_outputs = true});
  apply({tool("edits"), tool("looks")});
  EXPECT_EQ(call("add"), (Array{100, 100}));
  EXPECT_EQ(trace(), "add seen");
}

TEST_F(AnalysisTest, AnOutputAnalysisOfAnInPlaceOperatorSeesTheInputAsItWas) {
  tool("a").does(
      [&](OpContext& op) {
        EXPECT_EQ(reference::array(op.input(0)), (Array{1, -2}));
        EXPECT_EQ(reference::array(op.output(0)), (Array{1, 0}));
        note("seen");
      },
      {.require_outputs = true});
  apply({tool("a")});
  call("relu_");
  EXPECT_EQ(trace(), "relu_ seen");
}

TEST_F(AnalysisTest, TheContextKnowsTheOperator) {
  Place model("model"), layer("relu1");
  tool("a").does([&](OpContext& op) {
    EXPECT_EQ(op.op().ns, "ref");
    EXPECT_EQ(op.op().name, "linear");
    EXPECT_EQ(op.op().schema, "ref::linear(input, weight, bias) -> (result)");
    EXPECT_EQ(op.name_space(), "reference/1/eager");
    EXPECT_EQ(op.module_path(), "model.relu1");
    EXPECT_EQ(op.source(), "");
    EXPECT_EQ(op.num_inputs(), 3u);
    EXPECT_EQ(op.tool().name(), "a");
    EXPECT_NE(op.op_id(), 0u);
    EXPECT_TRUE(op.is_forward());
    EXPECT_FALSE(op.is_backward());
    EXPECT_FALSE(op.is_recompute());
    EXPECT_FALSE(op.is_symbolic());
    note("seen");
  });
  apply({tool("a")});
  call("linear");
  EXPECT_EQ(trace(), "seen linear matmul add");
}

TEST_F(AnalysisTest, AfterAnalysisTheContextSaysThatItIsOver) {
  OpContext* kept = nullptr;
  tool("a").does([&](OpContext& op) { kept = &op; });
  apply({tool("a")});
  call("add");
  EXPECT_EQ(error_of([&] { kept->input(0); }),
            "[context] inputs works only while the analysis routine runs; take what you need there, and hand it to the "
            "routine as a keyword");
  EXPECT_THROW(kept->insert_before_op([](Values&) {}), Error);
}

TEST_F(AnalysisTest, AnotherThreadReadsNothingThatEndsWithTheAnalysis) {
  tool("a").does([&](OpContext& op) {
    std::thread([&] {
      EXPECT_EQ(error_of([&] { op.input(0); }),
                "[context] inputs works only on the thread that runs the analysis routine; take what you need there, "
                "and hand it to the other thread");
      EXPECT_THROW(op.insert_before_op([](Values&) {}), Error);
      EXPECT_EQ(op.op().name, "add");
      EXPECT_TRUE(op.actions().empty());
    }).join();
    EXPECT_EQ(op.num_inputs(), 2u);
    note("seen");
  });
  apply({tool("a")});
  call("add");
  EXPECT_EQ(trace(), "seen add");
}

TEST_F(AnalysisTest, OutputsBeforeTheOperatorRanAreRefused) {
  tool("a").does([&](OpContext& op) { op.output(0); });
  apply({tool("a")});
  EXPECT_EQ(error_of([&] { call("add"); }),
            "[context] outputs are there only in an analysis registered with require_outputs");
}

TEST_F(AnalysisTest, KeysOfOneToolAreSeenByThoseThatRunAfterIt) {
  tool("a").does([&](OpContext& op) { op.set("sparsity", 0.5); });
  tool("b").does([&](OpContext& op) {
    EXPECT_EQ(op.get<int64_t>("sparsity"), nullptr);
    EXPECT_EQ(*op.get<double>("sparsity"), 0.5);
    note("seen");
  });
  apply({tool("b").after("a")});
  call("add");
  EXPECT_EQ(trace(), "seen add");
}

TEST_F(AnalysisTest, AFailedAnalysisIsNotRemembered) {
  tool("a").does([&](OpContext& op) {
    op.insert_before_op([&](Values&) { note("a<"); });
    tool("a").say("?");
  });
  tool("a").fails_at("?");
  apply({tool("a")});
  EXPECT_EQ(error_of<std::runtime_error>([&] { call("add"); }), "boom");
  EXPECT_EQ(trace(), "a?");
  tool("a").fails_at("");
  call("add");
  call("add");
  EXPECT_EQ(trace(), "a? a< add a< add");
}

TEST_F(AnalysisTest, AFailedAnalysisLeavesThoseBeforeItDone) {
  apply({tool("a").tells_analysis(), tool("b").tells_analysis().fails_at("?")});
  EXPECT_THROW(call("add"), std::runtime_error);
  tool("b").fails_at("");
  call("add");
  EXPECT_EQ(trace(), "a? b? b? a< b< add a> b>");
}

TEST_F(AnalysisTest, AFailedOutputAnalysisIsNotRemembered) {
  tool("a").does(
      [&](OpContext& op) {
        op.insert_after_op([&](Values&) { note("a>"); });
        tool("a").say("?");
      },
      {.require_outputs = true});
  tool("a").fails_at("?");
  apply({tool("a")});
  EXPECT_THROW(call("add"), std::runtime_error);
  tool("a").fails_at("");
  call("add");
  call("add");
  EXPECT_EQ(trace(), "add a? add a? a> add a>");
}

TEST_F(AnalysisTest, ARegistrationAddedToAnOpenToolAppliesFromTheNextRunOn) {
  apply({tool("a").tells_analysis()});
  call("add");
  tool("a").does([&](OpContext& op) {
    note("more?");
    op.insert_before_op([&](Values&) { note("more<"); });
  });
  call("add");
  EXPECT_EQ(trace(), "a? a< add a> more? a< more< add a>");
}

TEST_F(AnalysisTest, ARegistrationMayWidenWhatAToolAsksFor) {
  apply({tool("a").asks({"mul"})});
  call("add");
  tool("a").does([&](OpContext&) { note("more?"); }, {.ops = {"add"}});
  call("add");
  EXPECT_EQ(trace(), "add more? add");
}

TEST_F(AnalysisTest, ARegistrationAddedByAnAnalysisAppliesFromTheNextRunOn) {
  bool added = false;
  tool("a").does([&](OpContext&) {
    note("a?");
    if (!std::exchange(added, true)) tool("a").does([&](OpContext&) { note("more?"); });
  });
  apply({tool("a")});
  call("add");
  call("add");
  call("add");
  EXPECT_EQ(trace(), "a? add more? add add");
}

TEST_F(AnalysisTest, AnOperatorWithoutIdentityIsAnalysedEachTime) {
  apply({tool("a").tells_analysis()});
  const Place nowhere = Place::nowhere();
  call("add");
  call("add");
  EXPECT_EQ(trace(), "a? a< add a> a? a< add a>");
}

TEST_F(AnalysisTest, ToolsShareTheContextOfAnOperatorWithoutIdentity) {
  tool("a").does([&](OpContext& op) { op.set("key", true); });
  tool("b").does(
      [&](OpContext& op) {
        EXPECT_NE(op.get<bool>("key"), nullptr);
        op.insert_after_op([&](Values&) { note("b>"); });
      },
      {.require_outputs = true});
  apply({tool("a"), tool("b")});
  const Place nowhere = Place::nowhere();
  call("add");
  EXPECT_EQ(trace(), "add b>");
}

TEST_F(AnalysisTest, AnalysisItselfIsNotObserved) {
  tool("a").does([&](OpContext&) {
    note("a?");
    call("neg");
    EXPECT_EQ(reference::routine_mode(), RoutineMode::kIsolated);
  });
  apply({tool("a")});
  call("add");
  EXPECT_EQ(trace(), "a? neg add");
}

}  // namespace
}  // namespace amanda
