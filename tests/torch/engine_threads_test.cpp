// Backward passes on threads that PyTorch gives the caller's state: stand-ins for the engine's own, which drive
// devices.
#include "thread/engine_threads.h"

#include <ATen/ThreadLocalState.h>
#include <amanda/driver/engine.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <barrier>
#include <functional>
#include <optional>
#include <thread>

#include "amanda/torch.h"
#include "base/port.h"
#include "thread/keys.h"

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

/// A thread with this one's state, as PyTorch gives it to threads that work for it, where there are such threads.
std::jthread thread_like_this(std::function<void()> work) {
  amanda::pytorch::publish_scopes_now();
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
    amanda::pytorch::publish_scopes_now();
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

/// Notes whether operators are caught where it runs backward, and runs `inside` there.
struct Inside : torch::autograd::Function<Inside> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               std::function<void()>* inside) {
    context->saved_data["inside"] = reinterpret_cast<int64_t>(inside);
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    (*reinterpret_cast<std::function<void()>*>(context->saved_data["inside"].toInt()))();
    return {gradients[0], {}};
  }
};

torch::Tensor with_inside(std::function<void()>& inside) {
  return Inside::apply(torch::ones({3}).requires_grad_(), &inside).sum();
}

bool is_caught() {
  using amanda::pytorch::keys;
  return c10::impl::tls_is_dispatch_key_included(keys().all) || c10::impl::tls_is_dispatch_key_included(keys().filter);
}

struct LooksForward final : amanda::Tool {
  explicit LooksForward(amanda::OpFilter ops) : Tool("looks") {
    add_inst_for_op([this](OpContext& op) { op.insert_before_op([this](Values&) { ++runs; }, {.inputs = {}}); },
                    {.ops = std::move(ops)});
  }
  int runs = 0;
};

TEST(EngineEntry, OperatorsOfNodesAreNotCaught) {
  for (const bool filtered : {false, true}) {
    LooksForward tool(filtered ? amanda::OpFilter{"sum"} : amanda::OpFilter());
    const torch::Tensor x = torch::ones({3});
    std::vector<bool> caught;
    std::function<void()> innermost = [&] { caught.push_back(is_caught()); };
    std::function<void()> inside = [&] {
      {
        const at::AutoGradMode recording(true);
        with_inside(innermost).backward();
      }
      caught.push_back(is_caught());
    };
    amanda::Scope scope(tool);
    auto in = scope.enter();
    with_inside(inside).backward();
    caught.push_back(is_caught());
    EXPECT_EQ(caught, (std::vector<bool>{false, false, true})) << "filtered: " << filtered;
    tool.runs = 0;
    x.sum();
    EXPECT_EQ(tool.runs, 1);
  }
}

TEST(EngineEntry, OperatorsAreCaughtAgainAfterANodeFailed) {
  LooksForward tool(amanda::OpFilter{});
  std::function<void()> inside = [] { throw std::runtime_error("the node's own"); };
  amanda::Scope scope(tool);
  auto in = scope.enter();
  const torch::Tensor loss = with_inside(inside);
  EXPECT_THROW(loss.backward(), std::runtime_error);
  EXPECT_TRUE(is_caught());
}

/// Another engine that a program has put in place, and that keeps errors in a way of its own.
struct OtherEngine final : torch::autograd::Engine {
  void thread_on_exception(const std::shared_ptr<torch::autograd::GraphTask>&, const amanda::pytorch::port::NodePtr&,
                           std::exception& error) override {
    kept.emplace_back(error.what());
  }
  std::vector<std::string> kept;
};
OtherEngine& other_engine() {
  static auto& engine = *new OtherEngine;
  return engine;
}
torch::autograd::Engine* present_engine = nullptr;

// Distributed autograd runs nodes itself, and hands their errors to the engine that it was given.
TEST(EngineEntry, ErrorsOfNodesThatOthersRunReachTheEngineThatWasThere) {
  using torch::autograd::Engine;
  present_engine = &Engine::get_default_engine();
  torch::autograd::set_default_engine_stub([]() -> Engine& { return other_engine(); });
  LooksForward tool(amanda::OpFilter{});
  amanda::Scope scope(tool);
  auto in = scope.enter();
  Engine& entry = Engine::get_default_engine();
  torch::autograd::set_default_engine_stub([]() -> Engine& { return *present_engine; });
  EXPECT_NE(&entry, &other_engine());
  std::runtime_error error("the node's own");
  entry.thread_on_exception(nullptr, nullptr, error);
  EXPECT_EQ(other_engine().kept, std::vector<std::string>{"the node's own"});
}

TEST(EngineEntry, ToolsSeePassesThatNestDeeply) {
  constexpr int kDepth = 100;  // the engine goes on in threads of its own after 60
  Acts tool([] {});
  amanda::Scope scope(tool);
  auto in = scope.enter();
  std::vector<torch::Tensor> losses(kDepth);
  for (torch::Tensor& loss : losses) loss = recorded();
  std::vector<std::thread::id> threads;
  std::function<void()> inside = [&] {
    threads.push_back(std::this_thread::get_id());
    if (losses.empty()) return;
    const torch::Tensor loss = losses.back();
    losses.pop_back();
    const at::AutoGradMode recording(true);
    (loss + with_inside(inside)).backward();
  };
  with_inside(inside).backward();
  EXPECT_EQ(tool.runs, 2 * kDepth);  // relu and its leaf
  EXPECT_NE(threads.front(), threads.back());
}

}  // namespace
