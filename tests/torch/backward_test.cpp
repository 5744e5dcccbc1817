// Backward operators without Python.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "amanda/error.h"
#include "amanda/torch.h"

namespace {

using amanda::OpContext;
using amanda::Values;
namespace at_values = amanda::pytorch;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct Analyse : amanda::Tool {
  Analyse(std::function<void(OpContext&)> analysis, amanda::InstOptions options, std::string name = "tool")
      : Tool(std::move(name)) {
    add_inst_for_op(std::move(analysis), std::move(options));
  }
};

/// Lists the backward operators it sees, as they begin and end.
struct Recorder : amanda::Tool {
  std::mutex mutex;
  std::vector<std::string> events;

  explicit Recorder(amanda::OpFilter ops = {}) : Tool("recorder") {
    add_inst_for_op(
        [this](OpContext& op) {
          const std::string name = op.backward_op()->name + " of " + op.op().name;
          op.insert_before_backward_op([this, name](Values&) { add("<" + name); }, {.grad_outputs = {}});
          op.insert_after_backward_op([this, name](Values&) { add(">" + name); }, {.grad_inputs = {}});
        },
        {.backward = true, .ops = std::move(ops)});
  }
  void add(std::string event) {
    std::lock_guard lock(mutex);
    events.push_back(std::move(event));
  }
};

template <class Fn>
void in_scope(amanda::Tool& tool, const Fn& fn) {
  amanda::Scope scope(tool);
  auto guard = scope.enter();
  fn();
}

std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const amanda::Error& e) {
    return e.what();
  }
  return "no error";
}

torch::Tensor leaf(std::vector<int64_t> shape) { return torch::rand(shape).requires_grad_(); }

TEST(Backward, EveryNodeBelongsToTheOperatorThatMadeIt) {
  Recorder tool;
  const auto x = torch::rand({2, 3, 4}), w = leaf({5, 4}), b = leaf({5});
  in_scope(tool, [&] { torch::linear(x, w, b).sum().backward(); });
  EXPECT_EQ(tool.events,
            (std::vector<std::string>{"<SumBackward0 of sum", ">SumBackward0 of sum",               //
                                      "<ViewBackward0 of linear", ">ViewBackward0 of linear",       //
                                      "<AddmmBackward0 of linear", ">AddmmBackward0 of linear",     //
                                      "<AccumulateGrad of linear", ">AccumulateGrad of linear",     // the bias
                                      "<TBackward0 of linear", ">TBackward0 of linear",             //
                                      "<AccumulateGrad of linear", ">AccumulateGrad of linear"}));  // the weight
}

TEST(Backward, EditsAreWhatFlowsOn) {
  const auto x = leaf({3});
  Analyse tool(
      [](OpContext& op) {
        op.insert_before_backward_op([](Values& v) { at_values::set(v, 0, at_values::tensor(v[0]) * 2); },
                                     {.grad_outputs = {0}});
        op.insert_after_backward_op([](Values& v) { at_values::set(v, 0, at_values::tensor(v[0]) + 1); },
                                    {.grad_inputs = {0}});
      },
      {.ops = {"sin"}});  // from the forward analysis: for the node that sin makes, not for the leaf's
  in_scope(tool, [&] { x.sin().sum().backward(); });
  EXPECT_TRUE(torch::equal(x.grad(), 2 * x.cos() + 1));
}

struct Double : torch::autograd::Function<Double> {
  static inline int backwards = 0;
  static torch::Tensor forward(AutogradContext*, torch::Tensor x) { return 2 * x; }
  static tensor_list backward(AutogradContext*, tensor_list gradients) {
    ++backwards;
    return {2 * gradients[0]};
  }
};

TORCH_LIBRARY(amanda_backward_test, m) { m.def("double(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(amanda_backward_test, Autograd, m) {
  m.impl("double", [](const torch::Tensor& x) { return Double::apply(x); });
}

torch::Tensor doubled(const torch::Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("amanda_backward_test::double", "")
                             .typed<torch::Tensor(const torch::Tensor&)>();
  return op.call(x);
}

TEST(Backward, AReplacedNodeDoesNotRun) {
  Analyse tool(
      [](OpContext& op) {
        if (op.backward_op()->name == "AccumulateGrad") return;
        op.replace_backward_op([](Values& v) { at_values::set_result(v, 0, at_values::tensor(v[0]) * 10); });
      },
      {.backward = true, .ops = {"double"}});
  amanda::Scope scope(tool);
  const auto x = leaf({2});
  auto step = [&] {
    x.mutable_grad().reset();
    doubled(x).sum().backward();
    return x.grad()[0].item<float>();
  };
  Double::backwards = 0;
  {
    auto guard = scope.enter();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(step(), 10);
  }
  EXPECT_EQ(Double::backwards, 0);
  EXPECT_EQ(step(), 2);
}

TEST(Backward, AReplacementCanCallTheOriginal) {
  Analyse tool(
      [](OpContext& op) {
        if (op.backward_op()->name != "SinBackward0") return;
        op.replace_backward_op([](Values& v) {
          v.call_original();
          EXPECT_EQ(v.num_results(), 1);
        });
      },
      {.backward = true});
  amanda::Scope scope(tool);
  auto guard = scope.enter();
  for (int i = 0; i < 2; ++i) {
    const auto x = leaf({3});
    x.sin().sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), x.cos()));
  }
}

TEST(Backward, AccumulateGradIsNotReplaced) {
  const auto x = leaf({3});
  Analyse tool(
      [](OpContext& op) {
        if (op.backward_op()->name == "AccumulateGrad") op.replace_backward_op([](Values&) {});
      },
      {.backward = true, .ops = {"sin"}});
  EXPECT_EQ(message_of([&] { in_scope(tool, [&] { x.sin().sum().backward(); }); }),
            "[context] tool: replace_backward_op on AccumulateGrad of aten::sin: a gradient must be accumulated into "
            "its leaf; edit it before that, by insert_before_backward_op");
}

TEST(Backward, AGradientKeepsItsShape) {
  Analyse tool(
      [](OpContext& op) {
        op.insert_before_backward_op([](Values& v) { at_values::set(v, 0, torch::ones({7})); }, {.grad_outputs = {0}});
      },
      {.ops = {"sin"}});
  const auto x = leaf({3});
  EXPECT_EQ(message_of([&] { in_scope(tool, [&] { x.sin().sum().backward(); }); }),
            "[action] tool: a C++ routine before SinBackward0 of aten::sin: grad_output 0: a gradient of shape [7] "
            "cannot replace one of [3]");
}

TEST(Backward, ForwardOperandsAreThoseStillAlive) {
  std::vector<bool> alive;
  Analyse tool(
      [&](OpContext& op) {
        if (op.backward_op()->name != "AddmmBackward0") return;
        for (size_t i = 0; i < op.num_inputs(); ++i) alive.push_back(at_values::is_tensor(op.input(i)));
      },
      {.backward = true, .ops = {"addmm"}});
  const auto w = leaf({2, 2}), b = leaf({2}), x = leaf({2, 2});
  in_scope(tool, [&] { torch::addmm(b, x.relu(), w).sum().backward(); });
  // autograd has saved the second operand; beta and alpha are numbers.
  EXPECT_EQ(alive, (std::vector<bool>{true, true, true, false, false}));
}

TEST(Backward, DeepReentrantPassesRunOnThreadsOfTheEngine) {
  // Beyond 60 levels the engine continues on another thread, with the scopes of the thread that called backward().
  struct Deep : torch::autograd::Function<Deep> {
    static torch::Tensor forward(AutogradContext* ctx, torch::Tensor x, int64_t depth) {
      ctx->saved_data["depth"] = depth;
      return x.clone();
    }
    static tensor_list backward(AutogradContext* ctx, tensor_list gradients) {
      const int64_t depth = ctx->saved_data["depth"].toInt();
      if (depth > 0) {
        c10::AutoGradMode recorded(true);
        const auto x = torch::ones({1}).requires_grad_();
        Deep::apply(x, depth - 1).backward();
      }
      return {gradients[0], torch::Tensor()};
    }
  };
  Recorder tool({"sin"});
  const auto x = leaf({1});
  in_scope(tool, [&] { Deep::apply(x.sin(), 100).backward(); });
  EXPECT_EQ(tool.events.size(), 4u);
}

TEST(Backward, ThreadsHaveGraphsAndScopesOfTheirOwn) {
  Recorder tool({"sin"});
  amanda::Scope scope(tool);
  auto work = [&](bool in_scope) {
    for (int i = 0; i < 100; ++i) {
      std::optional<amanda::Scope::Guard> guard;
      if (in_scope) guard.emplace(scope);
      leaf({3}).sin().sum().backward();
    }
  };
  std::thread a(work, true), b(work, true), c(work, false);
  a.join(), b.join(), c.join();
  EXPECT_EQ(tool.events.size(), 800u);
}

TEST(Backward, AfterTheScopeNothingFires) {
  Recorder tool;
  torch::Tensor y;
  const auto x = leaf({3});
  amanda::Scope scope(tool);
  {
    auto guard = scope.enter();
    y = x.sin().sum();
  }
  y.backward(/*gradient=*/{}, /*retain_graph=*/true);
  EXPECT_EQ(tool.events.size(), 0u);
  auto guard = scope.enter();
  y.backward();  // the same scope object, open again
  EXPECT_EQ(tool.events.size(), 6u);
}

}  // namespace
