// Drivers that break the rules of the seam: errors that name the driver and the operator, and no crash.
#include <amanda/amanda.h>
#include <gtest/gtest.h>

#include "toy_driver.h"

namespace amanda {
namespace {

/// LooksEverywhere at everything, forward and backward.
struct LooksEverywhere : Tool {
  LooksEverywhere() : Tool("looks") {
    add_inst_for_op([](OpContext& op) {
      op.insert_before_op([](Values& values) { look(values); }, {.kind = RoutineKind::kObserve});
      op.insert_after_op([](Values& values) { look(values); }, {.kind = RoutineKind::kObserve});
    });
    add_inst_for_op(
        [](OpContext& op) {
          op.insert_before_backward_op([](Values& values) { look(values); }, {.kind = RoutineKind::kObserve});
        },
        {.backward = true});
  }
  static void look(Values& values) {
    for (size_t i = 0; i < values.size(); ++i) last = values[i].ref;
  }
  static inline std::atomic<const void*> last{nullptr};
};

class MisbehavingDriver : public testing::Test {
 protected:
  ArtifactPtr instrument(GraphSite& graph) { return Engine::instrument(*Engine::toolset(*Toy::here), graph); }
  template <class E = Error>
  std::string message(const std::function<void()>& fn) {
    try {
      fn();
    } catch (const E& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
  std::string message_of(std::vector<ToyCall> ops) {
    graph.ops = std::move(ops);
    return message([&] { instrument(graph); });
  }
  /// Runs the first tap of the graph with this call.
  std::string message_of_run(ToyCall call) {
    const ArtifactPtr artifact = instrument(graph);
    return message([&] { Engine::run(*graph.taps.at(0), call); });
  }

  LooksEverywhere tool;
  Scope scope{tool};
  Scope::Guard in{scope};
  ToyGraph graph;
  ToyCall forward, backward;
  MisbehavingDriver() { backward.when = Phase::kBackward; }
};

struct OldDriver final : Backend {
  std::string_view name_space() const override { return "old/1/graph"; }
  Capabilities capabilities() const override { return {}; }
  const OpInfo& info(OpType type) const override { return Toy::get().info(type); }
  void switch_to(ScopeStack*) override {}
  void* begin_routines(RoutineMode) override { return nullptr; }
  void end_routines(void*) noexcept override {}
};

// ---- when it is made known ------------------------------------------------------------------------------------------

TEST_F(MisbehavingDriver, BuiltForAnotherSeam) {
  OldDriver driver;
  EXPECT_EQ(message([&] { Engine::attach(driver, kSeamVersion - 1); }),
            "[engine] the driver 'old/1/graph' was built for seam version " + std::to_string(kSeamVersion - 1) +
                ", this core has " + std::to_string(kSeamVersion) + "; rebuild the driver");
}

// ---- while its graph is visited -------------------------------------------------------------------------------------

TEST_F(MisbehavingDriver, ShowsOperatorsOutOfOrder) {
  EXPECT_EQ(message_of({forward, backward}), "nothing was thrown");
  EXPECT_EQ(message_of({backward}), "nothing was thrown");  // its forward operator was in another graph
  EXPECT_EQ(message_of({backward, forward}),
            "[graph] the driver 'toy/1/graph' showed a backward operator before its forward operator: toy::mul");
}

TEST_F(MisbehavingDriver, ShowsOperatorsWithoutIds) {
  forward.name = 0;
  backward.name = 0;
  EXPECT_EQ(message_of({forward}), "[graph] the driver 'toy/1/graph' showed an operator without an id: toy::mul");
  EXPECT_EQ(message_of({backward}),
            "[graph] the driver 'toy/1/graph' showed an operator without an id: mul of toy::mul");
}

TEST_F(MisbehavingDriver, ShowsAnotherDriversOperator) {
  static OldDriver other;
  forward.driver = &other;
  EXPECT_EQ(message_of({forward}), "[graph] the driver 'toy/1/graph' showed another driver's operator: toy::mul");
}

TEST_F(MisbehavingDriver, ReportsTooManyOperands) {
  forward.num_inputs = size_t{0} - 1;
  EXPECT_EQ(message_of({forward}),
            "[graph] the driver 'toy/1/graph' reported an impossible number of operands: toy::mul");
}

TEST_F(MisbehavingDriver, GivesNullOperands) {
  forward.gives_null = true;  // None, for all the core knows
  EXPECT_EQ(message_of({forward}), "nothing was thrown");
  LooksEverywhere::last = &forward;
  EXPECT_EQ(message_of_run(forward), "nothing was thrown");
  EXPECT_EQ(LooksEverywhere::last, nullptr);
}

TEST_F(MisbehavingDriver, ThrowsWhileItShowsItsGraph) {
  struct Throws final : ToyGraph {
    void each_op(GraphVisitor& visitor) override {
      visitor.op(ops[0]);
      throw std::runtime_error("half a graph");
    }
  } throws;
  EXPECT_EQ(message<std::runtime_error>([&] { instrument(throws); }), "half a graph");
}

TEST_F(MisbehavingDriver, GoesOnAfterAnAnalysisHasFailed) {
  Tool fails("fails");
  int analyses = 0;
  fails.add_inst_for_op([&](OpContext&) {
    ++analyses;
    throw std::runtime_error("the tool's own");
  });
  Scope inner(fails);
  auto deeper = inner.enter();
  ToyCall second;
  second.name = 8;
  graph.ops = {forward, second};
  EXPECT_EQ(message<std::runtime_error>([&] { instrument(graph); }), "the tool's own");
  EXPECT_EQ(analyses, 1);
  EXPECT_TRUE(graph.taps.empty());
}

// ---- while it makes an artifact -------------------------------------------------------------------------------------

TEST_F(MisbehavingDriver, FailsToLower) {
  graph.lowers = [] { throw std::runtime_error("no room"); };
  ArtifactCache cache;
  for (int i = 0; i < 2; ++i) {
    const ArtifactPtr artifact = cache.get(Engine::toolset(*Toy::here), "", graph);
    EXPECT_FALSE(artifact->lowered);
    EXPECT_EQ(artifact->failure,
              "the driver 'toy/1/graph' could not put taps into a graph, which runs without them: no room");
  }
  EXPECT_EQ(cache.info().builds, 1u);  // that it fails is remembered
}

TEST_F(MisbehavingDriver, IsInterruptedWhileItLowers) {
  struct Interrupt {};
  graph.lowers = [] { throw Interrupt(); };
  ArtifactCache cache;
  for (int i = 0; i < 2; ++i) EXPECT_THROW(cache.get(Engine::toolset(*Toy::here), "", graph), Interrupt);
  EXPECT_EQ(cache.info().builds, 2u);  // that it was interrupted is not
  EXPECT_EQ(cache.info().size, 0u);
}

TEST_F(MisbehavingDriver, LowersToNothing) {
  struct Nothing final : ToyGraph {
    std::shared_ptr<void> lower(const std::vector<SitePlan>&) override { return nullptr; }
  } nothing;
  EXPECT_EQ(instrument(nothing)->failure,
            "the driver 'toy/1/graph' could not put taps into a graph, which runs without them: it gave no artifact "
            "for the taps it was given");
}

TEST_F(MisbehavingDriver, AsksForAnArtifactWhileItMakesIt) {
  ArtifactCache cache;
  const ToolsetPtr toolset = Engine::toolset(*Toy::here);
  graph.lowers = [&] { cache.get(toolset, "", graph); };
  EXPECT_EQ(cache.get(toolset, "", graph)->failure,
            "the driver 'toy/1/graph' could not put taps into a graph, which runs without them: [graph] the driver "
            "'toy/1/graph' asked for an artifact while this thread builds it; each_op() and lower() must not run the "
            "graph that they show");
}

// ---- when its taps run ----------------------------------------------------------------------------------------------

TEST_F(MisbehavingDriver, RunsATapInTheWrongPhase) {
  EXPECT_EQ(message_of_run(backward),
            "[graph] the driver 'toy/1/graph' ran a tap of a forward operator in a backward one: mul of toy::mul");
  graph.ops = {backward};
  EXPECT_EQ(message_of_run(forward),
            "[graph] the driver 'toy/1/graph' ran a tap of a backward operator in a forward one: toy::mul");
}

TEST_F(MisbehavingDriver, RunsATapWithFewerOperands) {
  forward.num_inputs = 1;
  EXPECT_EQ(message_of_run(forward),
            "[graph] the driver 'toy/1/graph' ran a tap of toy::mul with 1 inputs; the tap was made for 2 or more");
}

TEST_F(MisbehavingDriver, RunsATapWithoutAnOperandThatItShowed) {
  forward.gives_null = true;
  EXPECT_EQ(message_of_run(forward),
            "[graph] the driver 'toy/1/graph' ran a tap of toy::mul without input 0, which it showed to the analysis");
}

TEST_F(MisbehavingDriver, AsksForATapThatWasNeverMade) { EXPECT_EQ(Engine::tap(0), nullptr); }

}  // namespace
}  // namespace amanda
