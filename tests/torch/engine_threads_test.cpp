// Backward passes on threads that PyTorch gives the caller's state: stand-ins for the engine's own, which drive
// devices.
#include <ATen/ThreadLocalState.h>
#include <amanda/engine.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <barrier>
#include <functional>
#include <optional>
#include <thread>

#include "amanda/torch.h"

namespace {

using amanda::OpContext;
using amanda::Values;

/// Calls `act` before each backward operator of relu.
struct Acts final : amanda::Tool {
  explicit Acts(std::function<void()> act) : Tool("acts"), act(std::move(act)) {
    add_inst_for_op(
        [this](OpContext& op) {
          op.insert_before_backward_op(
              [this](Values&) {
                ++runs;
                this->act();
              },
              {.grad_outputs = {}});
        },
        {.backward = true, .ops = {"relu"}});
  }
  std::function<void()> act;
  std::atomic<int> runs = 0;
};

/// A thread with this one's state, as PyTorch gives it to threads that work for it.
std::jthread thread_like_this(std::function<void()> work) {
  return std::jthread([state = at::ThreadLocalState(), work = std::move(work)] {
    at::ThreadLocalStateGuard guard(state);
    work();
  });
}

torch::Tensor recorded() { return torch::ones({3}).requires_grad_().relu().sum(); }

TEST(EngineThreads, ASwitchTurnedThereIsThatThreads) {
  Acts tool([] {
    amanda::Switch off = amanda::disabled();
    EXPECT_FALSE(amanda::is_enabled());
  });
  amanda::Scope scope(tool);
  auto in = scope.enter();
  const torch::Tensor losses[] = {recorded(), recorded(), recorded()};
  thread_like_this([&] {
    losses[0].backward();
    losses[1].backward();
  }).join();
  const int there = tool.runs;
  EXPECT_EQ(there, 4);  // relu and the leaf, twice
  thread_like_this([&] { losses[2].backward(); }).join();
  EXPECT_EQ(tool.runs, 6);
}

TEST(EngineThreads, AScopeEnteredThereGivesWayToTheCallersAgain) {
  Acts inner([] {});
  amanda::Scope own(inner);
  Acts tool([&] { auto in = own.enter(); });
  amanda::Scope scope(tool);
  auto in = scope.enter();
  const torch::Tensor losses[] = {recorded(), recorded()};
  thread_like_this([&] {
    losses[0].backward();
    losses[1].backward();
  }).join();
  EXPECT_EQ(tool.runs, 4);
}

TEST(EngineThreads, ScopesAreAliveWhileAnotherThreadStillWorksWithThem) {
  auto owner = std::make_shared<int>();
  const std::weak_ptr<int> tools = owner;
  std::barrier step(2);
  bool first = true;
  auto tool = std::make_unique<Acts>([&] {
    if (!std::exchange(first, false)) return;
    step.arrive_and_wait();
    step.arrive_and_wait();  // meanwhile the caller's backward() has failed, and it leaves
    EXPECT_FALSE(tools.expired());
  });
  auto scope = std::make_unique<amanda::Scope>(std::vector<amanda::Tool*>{tool.get()},
                                               amanda::ScopeOptions{.tools_owner = std::move(owner)});
  const uint64_t entry = scope->enter_entry();
  const torch::Tensor loss = recorded();
  std::jthread device = thread_like_this([&] { loss.backward(); });
  step.arrive_and_wait();
  scope->leave_entry(entry, nullptr);
  scope.reset();
  step.arrive_and_wait();
  device.join();
  EXPECT_TRUE(tools.expired());
  EXPECT_EQ(tool->runs, 1);  // the leaf's node ran after the caller had left
}

TEST(EngineThreads, AStateThatLivesOnKeepsNothingAlive) {
  auto owner = std::make_shared<int>();
  const std::weak_ptr<int> tools = owner;
  Acts tool([] {});
  std::optional<at::ThreadLocalState> state;
  const torch::Tensor loss = [&] {
    amanda::Scope scope({&tool}, {.tools_owner = std::move(owner)});
    auto in = scope.enter();
    torch::Tensor loss = recorded();
    state.emplace();
    return loss;
  }();
  EXPECT_TRUE(tools.expired());
  std::jthread([&] {
    at::ThreadLocalStateGuard guard(*state);
    loss.backward();
  }).join();
  EXPECT_EQ(tool.runs, 0);
}

}  // namespace
