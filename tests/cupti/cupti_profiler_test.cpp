// The tool on the reference driver, its kernels from the library that stands in for CUPTI: each operator's kernel
// launches one kernel of its name.
#include "cupti_profiler/cupti_profiler.h"

#include <amanda/reference/array.h>
#include <amanda/reference/call.h>
#include <amanda/reference/gradient.h>
#include <amanda/reference/operator.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "stand_in.h"

namespace amanda::tools {
namespace {

using reference::Array;
using reference::call;
using reference::Place;

void heard_nothing(int64_t, bool) noexcept {}
FrameworkProbe::Heard told = heard_nothing;  // who is told of the allocations below
int listeners = 0;
bool taken = false;

FrameworkProbe probe() {
  return {.listen = [](FrameworkProbe::Heard heard) -> void* {
            if (taken) return nullptr;
            told = heard;
            ++listeners;
            return &told;
          },
          .unlisten =
              [](void*) noexcept {
                told = heard_nothing;
                --listeners;
              },
          .other_profiler = [] { return taken ? "another.profiler" : nullptr; },
          .synchronize = nullptr};
}

void launch_kernel(const OpInfo& op) { stand_in_launch(op.name.c_str(), 7); }

const Array kOne = Array({1, 1}, {1});

class CuptiProfilerTest : public ::testing::Test {
 protected:
  CuptiProfilerTest() {
    setenv("AMANDA_CUPTI", AMANDA_TEST_STAND_IN, 1);
    stand_in_reset();
    set_log_sink([this](const std::string& line) { log += line + "\n"; });
    reference::set_kernel_listener(launch_kernel);
    define_once();
  }
  ~CuptiProfilerTest() override {
    reference::set_kernel_listener({});
    set_log_sink({});
    stand_in_reset();
    taken = false;
    EXPECT_EQ(listeners, 0);
    EXPECT_EQ(stand_in_depth(), 0u);
  }

  static void define_once() {
    static const bool defined = [] {
      reference::define(
          {.info = {"test", "fails", "", {"a"}, {"result"}, ""},
           .kernel = [](const reference::Operands&) -> reference::Operands { throw std::runtime_error("boom"); }});
      reference::define({.info = {"test", "allocates", "", {"a"}, {"result"}, ""},
                         .kernel = [](const reference::Operands& in) -> reference::Operands {
                           told(100, true);
                           told(-40, true);
                           told(7, false);
                           call("neg", in);
                           return in;
                         }});
      reference::define({.info = {"test", "tries", "", {"a"}, {"result"}, ""},
                         .kernel = [](const reference::Operands& in) -> reference::Operands {
                           try {
                             call("fails", in);
                           } catch (const std::runtime_error&) {
                           }
                           return {call("neg", in)[0]};
                         }});
      return true;
    }();
    static_cast<void>(defined);
  }

  CuptiProfiler& tool(CuptiProfilerOptions options = {}) {
    tool_ = std::make_unique<CuptiProfiler>(std::move(options));
    return *tool_;
  }
  KernelProfile& profile() { return *tool_->profile(); }

  /// "linear/matmul": a node by the names of the operators around it.
  std::string path(uint32_t node) {
    const auto operators = profile().runs()->tree().operators();
    const auto totals = profile().runs()->tree().totals();
    std::string text;
    for (; node != 0; node = totals[node].parent) {
      text = operators[totals[node].op].name + (text.empty() ? "" : "/" + text);
    }
    return text;
  }
  /// "linear 1 linear/matmul 1": calls of every node that ran.
  std::string calls() {
    std::string text;
    for (const auto& node : profile().runs()->tree().totals()) {
      if (node.calls) text += (text.empty() ? "" : " ") + path(node.node) + " " + std::to_string(node.calls);
    }
    return text;
  }
  /// "relu@ref::linear": kernels, each at the node it belongs to.
  std::string kernels() {
    std::string text;
    for (const KernelTotals& kernel : profile().kernels().totals()) {
      text += (text.empty() ? "" : " ") + kernel.name + "@" + path(kernel.node);
      if (kernel.count > 1) text += " x" + std::to_string(kernel.count);
    }
    return text;
  }
  OperatorTree::Totals node(const std::string& wanted) {
    for (const auto& node : profile().runs()->tree().totals()) {
      if (path(node.node) == wanted) return node;
    }
    ADD_FAILURE() << wanted << " is not there";
    return {};
  }

  std::string log;
  std::unique_ptr<CuptiProfiler> tool_;
};

TEST_F(CuptiProfilerTest, KernelsBelongToTheInnermostOperatorThatIsSeen) {
  Scope scope(tool());
  {
    auto in = scope.enter();
    call("linear", {kOne, kOne, kOne});
  }
  EXPECT_EQ(calls(), "ref::linear 1 ref::linear/ref::matmul 1 ref::linear/ref::add 1");
  EXPECT_EQ(kernels(), "linear@ref::linear matmul@ref::linear/ref::matmul add@ref::linear/ref::add");
  EXPECT_EQ(profile().gpu_status(), "");
  EXPECT_TRUE(profile().notes().empty());
}

TEST_F(CuptiProfilerTest, WithoutNestedOperatorsTheyBelongToTheOutermost) {
  Scope scope(tool({.nested = false}));
  {
    auto in = scope.enter();
    call("linear", {kOne, kOne, kOne});
  }
  EXPECT_EQ(calls(), "ref::linear 1");
  EXPECT_EQ(kernels(), "add@ref::linear linear@ref::linear matmul@ref::linear");
}

TEST_F(CuptiProfilerTest, AFilterGivesInnerWorkToTheOperatorsAskedFor) {
  Scope scope(tool({.ops = {"linear"}}));
  {
    auto in = scope.enter();
    call("linear", {kOne, kOne, kOne});
    call("neg", {kOne});
  }
  EXPECT_EQ(kernels(), "neg@ add@ref::linear linear@ref::linear matmul@ref::linear");
  EXPECT_EQ(profile().notes(), std::vector<std::string>{"1 activities of the device were caused outside operators"});
}

TEST_F(CuptiProfilerTest, BackwardOperatorsHaveTheirOwn) {
  const Array x = reference::leaf(Array({1, 1}, {1}));  // of its own: leaves are no matter for several threads
  for (const auto how : {reference::NodesRun::kInCore, reference::NodesRun::kBetweenHooks}) {
    Scope scope(tool());
    {
      auto in = scope.enter();
      reference::backward(std::get<Array>(call("neg", {x})[0]), kOne, how);
    }
    EXPECT_EQ(calls(), "ref::neg 1 NegBackward 1 AccumulateGrad 1");
    EXPECT_EQ(node("NegBackward").phase, OperatorPhase::kBackward);
    const auto op = profile().runs()->tree().operators()[node("NegBackward").op];
    EXPECT_EQ(op.forward_name, "ref::neg");
    EXPECT_EQ(node("ref::neg").phase, OperatorPhase::kForward);
  }
}

TEST_F(CuptiProfilerTest, AForwardOperatorInsideABackwardOneIsRecomputed) {
  OperatorTree tree;
  const uint32_t backward = tree.index_of({.name = "B", .phase = OperatorPhase::kBackward});
  const uint32_t forward = tree.index_of({.name = "f"});
  OperatorTree::Node& inside = tree.child(tree.child(tree.root(), backward), forward);
  EXPECT_EQ(inside.phase, OperatorPhase::kRecompute);
  EXPECT_EQ(tree.child(inside, forward).phase, OperatorPhase::kRecompute);
  EXPECT_EQ(tree.child(tree.root(), forward).phase, OperatorPhase::kForward);
  EXPECT_EQ(&tree.child(tree.root(), forward), &tree.child(tree.root(), forward));
}

TEST_F(CuptiProfilerTest, AKeyOfADependencySaysThatAnOperatorIsTheOptimizers) {
  Tool phases("phases");
  phases.add_inst_for_op([](OpContext& op) { op.set("cupti_profiler.phase", std::string("optimizer")); },
                         {.ops = {"mul"}});
  tool().depends_on(phases);
  Scope scope(*tool_);
  {
    auto in = scope.enter();
    call("mul", {kOne, kOne});
    call("neg", {kOne});
  }
  EXPECT_EQ(node("ref::mul").phase, OperatorPhase::kOptimizer);
  EXPECT_EQ(node("ref::neg").phase, OperatorPhase::kForward);
}

// ---- time and bytes ------------------------------------------------------------------------------------------------

TEST_F(CuptiProfilerTest, InclusiveTimeHoldsThatOfInnerOperatorsExclusiveDoesNot) {
  Scope scope(tool());
  {
    auto in = scope.enter();
    for (int i = 0; i < 20; ++i) call("linear", {kOne, kOne, kOne});
  }
  const auto outer = node("ref::linear").sum;
  const int64_t inner =
      node("ref::linear/ref::matmul").sum.inclusive_ns + node("ref::linear/ref::add").sum.inclusive_ns;
  EXPECT_GT(inner, 0);
  EXPECT_GE(outer.inclusive_ns, inner);
  EXPECT_LE(outer.exclusive_ns, outer.inclusive_ns - inner + 20'000);
  EXPECT_EQ(node("ref::linear/ref::add").sum.exclusive_ns, node("ref::linear/ref::add").sum.inclusive_ns);
}

TEST_F(CuptiProfilerTest, AllocationsBelongToTheInnermostOperator) {
  reference::set_kernel_listener([](const OpInfo& op) {
    if (op.name == "neg") told(5, true);
  });
  Scope scope(tool({.probe = probe()}));
  {
    auto in = scope.enter();
    told(1000, true);  // outside operators
    call("allocates", {kOne});
  }
  const auto outer = node("test::allocates").sum, inner = node("test::allocates/ref::neg").sum;
  EXPECT_EQ(outer.allocated_bytes, 100);
  EXPECT_EQ(outer.freed_bytes, 40);
  EXPECT_EQ(outer.device_allocated_bytes, 7);
  EXPECT_EQ(inner.allocated_bytes, 5);
}

TEST_F(CuptiProfilerTest, WhereAnotherProfilerListensItSaysSo) {
  taken = true;
  Scope scope(tool({.probe = probe()}));
  {
    auto in = scope.enter();
    call("neg", {kOne});
  }
  const std::string why =
      "no GPU kernels are collected, operators are timed on the host: [cupti] another.profiler is "
      "on, and only one profiler can collect kernels; end it first";
  EXPECT_EQ(profile().gpu_status(), why);
  EXPECT_EQ(log, "[cupti_profiler] " + why + "\n");
  EXPECT_EQ(profile().notes(),
            std::vector<std::string>{"1 operator runs have no bytes: another profiler was told of allocations"});
  EXPECT_EQ(calls(), "ref::neg 1");
}

TEST_F(CuptiProfilerTest, OperandBytesAreThoseReadAndWritten) {
  Scope scope(tool({.operand_bytes = true}));
  {
    auto in = scope.enter();
    call("add", {kOne, kOne});
    call("concat", {std::vector<Array>{kOne, kOne, kOne}});
  }
  EXPECT_EQ(node("ref::add").sum.operand_bytes, 24);
  EXPECT_EQ(node("ref::concat").sum.operand_bytes, 48);
}

TEST_F(CuptiProfilerTest, AKernelThatWasNotDoneTakesNoTimeAndIsNoted) {
  reference::set_kernel_listener([](const OpInfo& op) { stand_in_launch_unfinished(op.name.c_str()); });
  Scope scope(tool());
  {
    auto in = scope.enter();
    call("neg", {kOne});
  }
  EXPECT_EQ(kernels(), "neg@ref::neg");
  EXPECT_EQ(profile().kernels().totals()[0].total_ns, 0);
  EXPECT_EQ(profile().notes(),
            std::vector<std::string>{"1 activities of the device have no times: tables count them, with 0 ns"});
}

// ---- exceptions ----------------------------------------------------------------------------------------------------

TEST_F(CuptiProfilerTest, AnOperatorThatRaisesLeavesNothingOpen) {
  Scope scope(tool({.probe = probe()}));
  {
    auto in = scope.enter();
    EXPECT_THROW(call("fails", {kOne}), std::runtime_error);
    EXPECT_EQ(stand_in_depth(), 0u);
    EXPECT_EQ(listeners, 0);
    call("neg", {kOne});
  }
  EXPECT_EQ(calls(), "ref::neg 1");
  EXPECT_EQ(node("test::fails").failed, 1);
  EXPECT_EQ(kernels(), "fails@test::fails neg@ref::neg");
}

TEST_F(CuptiProfilerTest, AnExceptionInsideAnOperatorThatCatchesIt) {
  Scope scope(tool());
  {
    auto in = scope.enter();
    call("tries", {kOne});
  }
  EXPECT_EQ(calls(), "test::tries 1 test::tries/ref::neg 1");
  EXPECT_EQ(node("test::tries/test::fails").failed, 1);
  EXPECT_EQ(kernels(), "tries@test::tries fails@test::tries/test::fails neg@test::tries/ref::neg");
}

TEST_F(CuptiProfilerTest, ARunThatIsForgottenLateLeavesLaterOnesAsTheyAre) {
  auto runs = std::make_shared<OperatorRuns>(FrameworkProbe{}, 10);
  OperatorRuns::Site a(runs->tree().index_of({.name = "a"})), b(runs->tree().index_of({.name = "b"}));
  auto stale = std::make_unique<OperatorRuns::Bracket>();
  stale->begin(runs, a);
  OperatorRuns::Bracket later;
  later.begin(runs, b);
  stale.reset();
  later.stop();
  later.end();
  ASSERT_EQ(runs->events().size(), 1u);
  OperatorRuns::Bracket next;
  next.begin(runs, b);
  next.stop();
  next.end();
  const auto totals = runs->tree().totals();
  EXPECT_EQ(totals[runs->events()[1].node].parent, 0u);
}

// ---- scopes and threads --------------------------------------------------------------------------------------------

TEST_F(CuptiProfilerTest, TheLastScopeEndsTheCollectionAndItCanGoOnLater) {
  Scope scope(tool());
  for (int i = 0; i < 3; ++i) {
    {
      auto outer = scope.enter();
      {
        auto inner = scope.enter();
        call("neg", {kOne});
      }
      EXPECT_GT(stand_in_enabled(), 0u);
      call("neg", {kOne});
    }
    EXPECT_EQ(stand_in_enabled(), 0u);
  }
  EXPECT_EQ(calls(), "ref::neg 6");
  EXPECT_EQ(kernels(), "neg@ref::neg x6");
}

TEST_F(CuptiProfilerTest, ThreadsDoNotMixTheirKernels) {
  Scope scope(tool());
  std::vector<std::thread> threads;
  for (const std::string name : {"neg", "relu", "linear", "fails"}) {
    threads.emplace_back([&scope, name] {
      reference::set_kernel_listener(launch_kernel);
      auto in = scope.enter();
      for (int i = 0; i < 200; ++i) {
        try {
          call(name, name == "linear" ? reference::Operands{kOne, kOne, kOne} : reference::Operands{kOne});
        } catch (const std::runtime_error&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<std::string, int64_t> counts;
  for (const KernelTotals& kernel : profile().kernels().totals()) {
    counts[kernel.name + "@" + path(kernel.node)] += kernel.count;
  }
  const std::map<std::string, int64_t> expected = {{"neg@ref::neg", 200},
                                                   {"relu@ref::relu", 200},
                                                   {"linear@ref::linear", 200},
                                                   {"matmul@ref::linear/ref::matmul", 200},
                                                   {"add@ref::linear/ref::add", 200},
                                                   {"fails@test::fails", 200}};
  EXPECT_EQ(counts, expected);
  EXPECT_EQ(node("test::fails").failed, 200);
}

TEST_F(CuptiProfilerTest, RunsCanBeReadWhileThreadsRunAndAfterTheyHaveEnded) {
  const auto runs = std::make_shared<OperatorRuns>(FrameworkProbe{}, 1000);
  OperatorRuns::Site outer(runs->tree().index_of({.name = "outer"})), inner(runs->tree().index_of({.name = "inner"}));
  const auto run = [&](OperatorRuns::Site& site, const auto& operate) {
    OperatorRuns::Bracket bracket;
    bracket.begin(runs, site);
    operate();
    bracket.stop();
    bracket.end();
  };
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) EXPECT_LE(runs->tree().totals().size() + runs->events().size(), 1003u);
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 500; ++j) run(outer, [&] { run(inner, [] {}); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  reader.join();
  const auto totals = runs->tree().totals();
  ASSERT_EQ(totals.size(), 3u);
  EXPECT_EQ(totals[1].calls + totals[2].calls, 4000);
  EXPECT_GE(totals[1].sum.inclusive_ns + totals[2].sum.inclusive_ns, totals[1].sum.exclusive_ns);
  EXPECT_EQ(runs->events().size(), 1000u);
  EXPECT_EQ(runs->dropped_events(), 3000u);
}

TEST_F(CuptiProfilerTest, ASecondProfilerSaysWhoCollects) {
  CuptiProfiler other;
  Scope first(tool()), second(other);
  auto in = first.enter();
  auto also = second.enter();
  EXPECT_EQ(other.profile()->gpu_status(),
            "no GPU kernels are collected, operators are timed on the host: [cupti] another CuptiProfiler of this "
            "process is collecting; leave its scope first");
}

TEST_F(CuptiProfilerTest, WithoutCuptiItSaysSoOnceAndTimesOperators) {
  stand_in_fail("cuptiSubscribe_v2", 15);
  Scope scope(tool());
  for (int i = 0; i < 2; ++i) {
    auto in = scope.enter();
    call("neg", {kOne});
  }
  EXPECT_EQ(log.find("[cupti_profiler] no GPU kernels are collected, operators are timed on the host: [cupti] "
                     "cuptiSubscribe_v2 failed: CUPTI_ERROR_NOT_INITIALIZED"),
            0u);
  EXPECT_EQ(log.find('\n'), log.size() - 1);
  EXPECT_EQ(calls(), "ref::neg 2");
  EXPECT_EQ(kernels(), "");
}

TEST_F(CuptiProfilerTest, NothingIsAskedOfCuptiIfKernelsAreNotWanted) {
  stand_in_fail("cuptiSubscribe_v2", 15);
  Scope scope(tool({.gpu = false}));
  {
    auto in = scope.enter();
    call("neg", {kOne});
  }
  EXPECT_EQ(log + profile().gpu_status(), "");
}

TEST_F(CuptiProfilerTest, AFailureWhileOperatorsRunReachesNobodyButTheNotes) {
  Scope scope(tool());
  {
    auto in = scope.enter();
    stand_in_fail("cuptiActivityPushExternalCorrelationId", 999);
    call("neg", {kOne});
    stand_in_fail("cuptiActivityPushExternalCorrelationId", 0);
    call("neg", {kOne});
  }
  EXPECT_EQ(calls(), "ref::neg 2");
  EXPECT_EQ(kernels(), "neg@ neg@ref::neg");
  ASSERT_EQ(profile().notes().size(), 2u);
  EXPECT_EQ(profile().notes()[1].find("[cupti] cuptiActivityPushExternalCorrelationId failed"), 0u);
}

TEST_F(CuptiProfilerTest, ADeviceThatFailsDoesNotKeepTheCollectionOpen) {
  FrameworkProbe failing;
  failing.synchronize = [] { throw std::runtime_error("CUDA error: an illegal memory access was encountered"); };
  Scope scope(tool({.probe = failing}));
  for (int i = 0; i < 2; ++i) {
    auto in = scope.enter();
    call("neg", {kOne});
  }
  EXPECT_EQ(stand_in_enabled(), 0u);
  EXPECT_EQ(profile().gpu_status(), "");
  EXPECT_EQ(kernels(), "neg@ref::neg x2");
  EXPECT_EQ(profile().notes(), std::vector<std::string>{"CUDA error: an illegal memory access was encountered"});
}

TEST_F(CuptiProfilerTest, ARunThatOutlivesTheCollectionLeavesNoIdOnItsThread) {
  Scope scope(tool());
  OperatorRuns::Bracket open;
  {
    auto in = scope.enter();
    OperatorRuns::Site site(profile().runs()->tree().index_of({.name = "open"}));
    open.begin(profile().runs(), site);
    EXPECT_EQ(stand_in_depth(), 1u);
  }
  open.stop();
  open.end();
  EXPECT_EQ(stand_in_depth(), 0u);
}

TEST_F(CuptiProfilerTest, AProfileThatGoesWhileItCollectsEndsTheCollection) {
  {
    KernelCollection collection(10);
    collection.start({});
    stand_in_launch("k", 7);
    EXPECT_GT(stand_in_enabled(), 0u);
  }
  EXPECT_EQ(stand_in_enabled(), 0u);
  stand_in_deliver();  // without a receiver
  Scope scope(tool());
  auto in = scope.enter();
  EXPECT_EQ(profile().gpu_status(), "");
}

TEST_F(CuptiProfilerTest, ResetInsideAScopeDropsWhatIsUnderWay) {
  Scope scope(tool());
  {
    auto in = scope.enter();
    call("neg", {kOne});
    profile().reset();
    call("relu", {kOne});
  }
  EXPECT_EQ(calls(), "ref::relu 1");
  EXPECT_EQ(kernels(), "relu@ref::relu");
}

TEST_F(CuptiProfilerTest, AForkedChildCanMeasureOperators) {
  Scope scope(tool());
  auto in = scope.enter();
  const pid_t child = fork();
  if (child == 0) {
    log.clear();
    {
      Scope own(*tool_);
      auto inside = own.enter();
      call("neg", {kOne});
    }
    const bool right = calls() == "ref::neg 1" && log.find("was forked from one that is collecting") != log.npos;
    _exit(right ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(CuptiProfilerTest, TracesAreBoundedTablesAreNot) {
  Scope scope(tool({.max_events = 3}));
  {
    auto in = scope.enter();
    for (int i = 0; i < 10; ++i) call("neg", {kOne});
  }
  EXPECT_EQ(profile().runs()->events().size(), 3u);
  EXPECT_EQ(profile().kernels().events().size(), 3u);
  EXPECT_EQ(calls() + ", " + kernels(), "ref::neg 10, neg@ref::neg x10");
  const std::vector<std::string> notes = {"7 later activities of the device are in no trace; tables count them",
                                          "7 later operator runs are in no trace; tables count them"};
  EXPECT_EQ(profile().notes(), notes);
}

TEST_F(CuptiProfilerTest, ResetStartsFromZero) {
  Scope scope(tool());
  {
    auto in = scope.enter();
    call("neg", {kOne});
  }
  profile().reset();
  EXPECT_EQ(calls() + kernels(), "");
  EXPECT_TRUE(profile().runs()->events().empty());
  {
    auto in = scope.enter();
    call("neg", {kOne});
  }
  EXPECT_EQ(calls(), "ref::neg 1");
}

TEST_F(CuptiProfilerTest, WhatWasMeasuredOutlivesTheTool) {
  std::shared_ptr<KernelProfile> kept;
  {
    CuptiProfiler brief;
    Scope scope(brief);
    auto in = scope.enter();
    call("neg", {kOne});
    kept = brief.profile();
  }
  EXPECT_EQ(kept->runs()->events().size(), 1u);
}

}  // namespace
}  // namespace amanda::tools
