// Several threads under one scope object.
#include <pthread.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "trace_test.h"

namespace amanda {
namespace {

class ThreadTest : public TraceTest {
 protected:
  static constexpr int kThreads = 4;
  /// Runs `body` on several threads that start together.
  static void together(const std::function<void(int thread)>& body) {
    std::barrier start(kThreads);
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        body(i);
      });
    }
  }
};

TEST_F(ThreadTest, AScopeCoversTheThreadThatEnteredItOnly) {
  apply({tool("a")});
  std::jthread([&] {
    reference::call("add", {Array{1}, Array{2}});
    note("elsewhere");
  }).join();
  call("add");
  EXPECT_EQ(trace(), "elsewhere a< add a>");
}

TEST_F(ThreadTest, ConcurrentFirstRunsAnalyseOnce) {
  constexpr int kPlaces = 200;
  std::atomic<int> analyses = 0, runs = 0, at_once = 0;
  Tool counter("counter");
  counter.add_inst_for_op([&](OpContext& op) {
    EXPECT_EQ(op.get<bool>("analysed"), nullptr);
    op.set("analysed", true);
    ++analyses;
    op.insert_before_op([&](Values&) { ++runs; });
  });
  counter.add_inst_for_op([&](OpContext& op) { op.insert_after_op([&](Values&) { ++runs; }); },
                          {.require_outputs = true});
  Scope scope(counter);
  together([&](int) {
    auto in = scope.enter();
    for (int i = 0; i < kPlaces; ++i) {
      Place here(std::to_string(i));
      for (int again = 0; again < 3; ++again) reference::call("add", {Array{1}, Array{2}});
    }
  });
  EXPECT_EQ(analyses, kPlaces);
  EXPECT_EQ(runs, kThreads * kPlaces * 6);
  EXPECT_EQ(scope.cache_info().size, size_t{kPlaces});
}

TEST_F(ThreadTest, AnAnalysisThatFailsOnOneThreadIsDoneByAnother) {
  std::atomic<int> analyses = 0, failures = 0, runs = 0;
  Tool flaky("flaky");
  flaky.add_inst_for_op([&](OpContext& op) {
    if (analyses++ == 0) throw std::runtime_error("boom");
    op.insert_before_op([&](Values&) { ++runs; });
  });
  Scope scope(flaky);
  together([&](int) {
    auto in = scope.enter();
    try {
      reference::call("add", {Array{1}, Array{2}});
    } catch (const std::runtime_error&) {
      ++failures;
    }
  });
  EXPECT_EQ(analyses, 2);
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(runs, kThreads - 1);
}

TEST_F(ThreadTest, WaitingForAnAnalysisCallsTheHooks) {
  static std::atomic<int> waiting, waits;
  waiting = waits = 0;
  set_wait_hooks({[]() -> void* {
                    ++waiting;
                    return &waiting;
                  },
                  [](void* token) {
                    EXPECT_EQ(token, &waiting);
                    ++waits;
                  }});
  Tool slow("slow");
  slow.add_inst_for_op([&](OpContext&) {
    while (waiting < kThreads - 1) std::this_thread::yield();
  });
  Scope scope(slow);
  together([&](int) {
    auto in = scope.enter();
    reference::call("add", {Array{1}, Array{2}});
  });
  set_wait_hooks({});
  EXPECT_EQ(waits, kThreads - 1);
  EXPECT_EQ(scope.cache_info().misses, 1u);
}

TEST_F(ThreadTest, InnerScopesCopyKeysWhileOuterToolsAnalyse) {
  constexpr int kPlaces = 100;
  Tool outer("outer");
  outer.add_inst_for_op([&](OpContext& op) { op.set("first", std::string("a key")); });
  auto write_more = [](OpContext& op) {
    for (int i = 0; i < 50; ++i) op.set("key" + std::to_string(i), i);
  };
  outer.add_inst_for_op(write_more, {.require_outputs = true});
  Scope outside(outer);
  std::atomic<int> seen = 0;
  together([&](int) {
    Tool inner("inner");
    inner.add_inst_for_op([&](OpContext& op) { seen += op.get<std::string>("first") != nullptr; });
    Scope inside(inner);
    auto out = outside.enter();
    auto in = inside.enter();
    for (int i = 0; i < kPlaces; ++i) {
      Place here(std::to_string(i));
      reference::call("add", {Array{1}, Array{2}});
    }
  });
  EXPECT_EQ(seen, kThreads * kPlaces);
}

TEST_F(ThreadTest, ScopesToolsAndActionsMayChangeWhileOthersRun) {
  std::atomic<int> runs = 0;
  Tool shared("shared");
  shared.add_inst_for_op([&](OpContext& op) { op.insert_before_op([&](Values&) { ++runs; }); });
  Scope scope(shared);
  together([&](int thread) {
    auto in = scope.enter();
    for (int i = 0; i < 300; ++i) {
      Tool own("own");
      Action action;
      own.add_inst_for_op([&](OpContext& op) { action = op.insert_after_op([](Values&) {}); });
      Scope inner(own);
      auto inside = inner.enter();
      reference::call("linear", {Array({1, 1}, {1}), Array({1, 1}, {1}), Array({1, 1}, {1})});
      action.remove();
      if (thread == 0 && i % 10 == 0) scope.cache_clear();
      if (thread == 1 && i % 100 == 0) shared.add_inst_for_op([](OpContext&) {});
    }
  });
  EXPECT_GT(runs, 0);
}

TEST_F(ThreadTest, AFailureOnOneThreadStopsTheToolOnAll) {
  std::atomic<int> told = 0;
  struct Fails final : Tool {
    explicit Fails(std::atomic<int>& told) : Tool("fails"), told(told) {
      add_inst_for_op([](OpContext& op) { op.insert_before_op([](Values&) { throw std::runtime_error("boom"); }); });
    }
    void on_disable(const std::exception_ptr&) override { ++told; }
    std::atomic<int>& told;
  } fails(told);
  Scope scope({&fails}, {OnError::kDisable});
  together([&](int) {
    auto in = scope.enter();
    for (int i = 0; i < 10; ++i) reference::call("add", {Array{1}, Array{2}});
  });
  EXPECT_EQ(told, 1);
  EXPECT_EQ(log().size(), 1u);
}

TEST_F(ThreadTest, AThreadThatIsEndedInARoutineEnds) {
  using Analysis = std::function<void(OpContext&)>;
  const std::vector<Analysis> endings = {
      [](OpContext&) { pthread_exit(nullptr); },
      [](OpContext& op) { op.insert_before_op([](Values&) { pthread_exit(nullptr); }); },
      [](OpContext& op) { op.replace_op([](Values&) { pthread_exit(nullptr); }); },
  };
  for (size_t i = 0; i < endings.size(); ++i) {
    const auto scope = this->scope({tool("ends" + std::to_string(i)).does(endings[i])}, OnError::kDisable);
    std::jthread([&] {
      auto in = scope->enter();
      reference::call("add", {Array{1}, Array{2}});
      note("went on");
    }).join();
    EXPECT_EQ(trace(), "");
    EXPECT_TRUE(log().empty());
  }
}

TEST_F(ThreadTest, SwitchesAreOfTheirThread) {
  const auto scope = this->scope({tool("a")});
  Switch off = disabled();
  std::jthread([&] {
    EXPECT_TRUE(is_enabled());
    auto in = scope->enter();
    reference::call("add", {Array{1}, Array{2}});
  }).join();
  EXPECT_EQ(trace(), "a< a>");
}

TEST_F(ThreadTest, AThreadThatEndsTakesItsScopesAlong) {
  auto owner = std::make_shared<int>();
  const std::weak_ptr<int> tools = owner;
  auto mine = std::make_unique<Scope>(std::vector<Tool*>{&tool("a")}, ScopeOptions{.tools_owner = std::move(owner)});
  std::jthread([&] { mine->enter_entry(); }).join();
  mine.reset();
  EXPECT_TRUE(tools.expired());
}

TEST_F(ThreadTest, ARegistrationOnAnotherThreadTakesEffect) {
  std::atomic<int> seen = 0;
  Tool shared("shared");
  shared.add_inst_for_op([&](OpContext&) { ++seen; }, {.ops = {"add"}, .optional = true});
  Scope scope(shared);
  auto in = scope.enter();
  reference::call("sub", {Array{1}, Array{2}});
  std::jthread([&] { shared.add_inst_for_op([&](OpContext&) { seen += 10; }, {.ops = {"sub"}}); }).join();
  reference::call("sub", {Array{1}, Array{2}});
  EXPECT_EQ(seen, 10);
}

}  // namespace
}  // namespace amanda
