// Backward operators in scopes: the cache, scopes opened and left between forward and backward, threads.
#include <atomic>
#include <barrier>
#include <thread>

#include "backward_test.h"

namespace amanda {
namespace {

using BackwardScopeTest = BackwardTest;
INSTANTIATE_BACKWARD_TEST(BackwardScopeTest);

// ---- the cache ------------------------------------------------------------------------------------------------------

TEST_P(BackwardScopeTest, WithoutTheCacheEachRunIsAnalysed) {
  apply({tool("a").backward().tells_analysis()});
  Switch off = cache_disabled();
  step();
  step();
  EXPECT_EQ(trace(), "neg a? a< NegBackward a> AccumulateGrad neg a? a< NegBackward a> AccumulateGrad");
}

TEST_P(BackwardScopeTest, AnOperatorWithoutAnIdIsAnalysedEachTime) {
  apply({tool("a").backward().tells_analysis()});
  Place nowhere = Place::nowhere();
  step();
  step();
  EXPECT_EQ(trace(), "neg a? a< NegBackward a> AccumulateGrad neg a? a< NegBackward a> AccumulateGrad");
}

TEST_P(BackwardScopeTest, ClearingTheCacheForgetsBackwardOperatorsToo) {
  Scope& scope = apply({tool("a").backward().tells_analysis()});
  step();
  scope.cache_clear();
  step();
  EXPECT_EQ(trace(), "neg a? a< NegBackward a> AccumulateGrad neg a? a< NegBackward a> AccumulateGrad");
}

TEST_P(BackwardScopeTest, ARemovedActionRunsNoMore) {
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

TEST_P(BackwardScopeTest, ARoutineThatIsAddedLaterSeesOperatorsAnalysedBefore) {
  apply({tool("a").backward()});
  const Array y = run("neg", {x});
  backward(y);
  tool("a").does([&](OpContext& op) { note(name(op) + "?"); }, {.backward = true});
  backward(y);
  EXPECT_EQ(trace(),
            "neg a< NegBackward a> AccumulateGrad NegBackward? a< NegBackward a> AccumulateGrad? AccumulateGrad");
}

// ---- scopes ---------------------------------------------------------------------------------------------------------

TEST_P(BackwardScopeTest, ANodeIsObservedWhileTheScopeObjectItWasMadeInIsOpen) {
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

TEST_P(BackwardScopeTest, NodesMadeInAnInnerScopeAreTheOutersAfterIt) {
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

TEST_P(BackwardScopeTest, NodesMadeInAnOuterScopeAreNotTheInners) {
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

TEST_P(BackwardScopeTest, UnderAnotherStackOfScopesToolsSeeANodeAsTheyDidBefore) {
  tool("c").after("b").asks({"matmul"}).nested().backward();
  apply({tool("a").nested().backward(), tool("b").asks(OpFilter::on_demand()).backward(), tool("c")});
  const Array y = run("linear", {leaf(square(2)), leaf(square(3)), leaf(square(4))});
  const std::string nodes =
      "a< a< AddBackward a> a> AccumulateGrad a< a< b< c< MatmulBackward a> b> c> a> AccumulateGrad AccumulateGrad";
  backward(y);
  EXPECT_EQ(trace(), "linear matmul add " + nodes);
  apply({tool("d").backward()});
  backward(y);
  EXPECT_EQ(trace(), nodes);
}

TEST_P(BackwardScopeTest, ATapeMadeOutsideIsLeftAlone) {
  const Array y = run("neg", {x});
  apply({tool("a").backward()});
  backward(y);
  EXPECT_EQ(trace(), "neg NegBackward AccumulateGrad");
  backward(run("neg", {y}));
  EXPECT_EQ(trace(), "neg a< NegBackward a> NegBackward AccumulateGrad");
}

TEST_P(BackwardScopeTest, ATapeOutlivesTheScopeObjectAndItsTools) {
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

TEST_P(BackwardScopeTest, DisabledIsVanillaForwardsAndBackwards) {
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

TEST_P(BackwardScopeTest, ATapeMadeOnOneThreadMayBeRunOnAnotherUnderTheSameScopeObject) {
  Scope& scope = apply({tool("a").backward().tells_analysis()});
  const Array y = run("neg", {x});
  std::jthread([&] {
    backward(y);
    note("|");
    auto in = scope.enter();
    backward(y);
  }).join();
  EXPECT_EQ(trace(), "neg | a? a< a>");  // the listener is of the fixture's thread
}

// ---- threads --------------------------------------------------------------------------------------------------------

TEST_P(BackwardScopeTest, ThreadsRunTapesOfTheirOwn) {
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
