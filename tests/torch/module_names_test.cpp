// Names of modules and parameters in a program without Python: ModuleNames.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "amanda/error.h"
#include "amanda/torch.h"
#include "amanda/torch_modules.h"

namespace {

using amanda::pytorch::ModuleNames;

/// Tells of each operator that it analyzes: "op module(names of its inputs)".
struct Teller : amanda::Tool {
  explicit Teller(amanda::InstOptions options = {}) : Tool("teller") {
    add_inst_for_op([this](amanda::OpContext& op) { tell(op); }, std::move(options));
  }
  std::string take() {
    std::lock_guard lock(mutex);
    return std::exchange(told, "");
  }

 private:
  void tell(amanda::OpContext& op) {
    std::string names;
    for (size_t i = 0; i < op.num_inputs(); ++i) {
      std::string name = op.parameter_name(i);
      for (const std::string& member : op.parameter_names(i)) name += "[" + member + "]";
      if (!name.empty()) names += (names.empty() ? "" : " ") + name;
    }
    std::lock_guard lock(mutex);
    told += (told.empty() ? "" : ", ") + op.op().name + " " + op.module_path() + "(" + names + ")";
  }

  std::mutex mutex;
  std::string told;
};

template <class Program>
std::string told(const Program& program, amanda::InstOptions options) {
  Teller tool(std::move(options));
  amanda::Scope scope(tool);
  auto in = scope.enter();
  program();
  return tool.take();
}

/// With a module of its own, a buffer, and a parameter of its own.
struct BlockImpl : torch::nn::Module {
  torch::nn::Sequential body{torch::nn::Linear(4, 4), torch::nn::ReLU(), torch::nn::Linear(4, 4)};
  torch::Tensor scale = register_parameter("scale", torch::ones({4}));
  torch::Tensor shift = register_buffer("shift", torch::zeros({4}));
  BlockImpl() { register_module("body", body); }
  torch::Tensor forward(const torch::Tensor& x) { return body->forward(x).mul(scale).sub(shift); }
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  Block first, second;
  torch::nn::Linear head{torch::nn::LinearOptions(4, 2).bias(false)};
  NetImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(second->forward(first->forward(x))); }
};
TORCH_MODULE(Net);

const amanda::OpFilter kAll{"addmm", "matmul", "relu", "mul", "sub"};
const char* const kNames =
    "addmm first.body.0(first.body.0.bias first.body.0.weight), relu (), "
    "addmm first.body.2(first.body.2.bias first.body.2.weight), mul first(first.scale), sub first(first.shift), "
    "addmm second.body.0(second.body.0.bias second.body.0.weight), relu (), "
    "addmm second.body.2(second.body.2.bias second.body.2.weight), mul second(second.scale), sub second(second.shift), "
    "matmul head(head.weight)";

TEST(ModuleNames, AreThoseOfTheModel) {
  Net net;
  const auto x = torch::ones({2, 4});
  const auto run = [&] { net->forward(x); };
  EXPECT_EQ(told(run, {.ops = {"matmul"}}), "matmul ()");
  const ModuleNames names(net);
  EXPECT_EQ(told(run, {.ops = kAll}), kNames);
}

TEST(ModuleNames, AreTheSameWithoutGradients) {
  Net net;
  for (torch::Tensor& parameter : net->parameters()) parameter.requires_grad_(false);
  const ModuleNames names(net);
  const auto x = torch::ones({2, 4});
  EXPECT_EQ(told([&] { net->forward(x); }, {.ops = kAll}), kNames);
  const torch::NoGradGuard guard;
  EXPECT_EQ(told([&] { net->forward(x); }, {.ops = kAll}), kNames);
}

TEST(ModuleNames, OutliveAChangeOfTheType) {
  Net net;
  const ModuleNames names(net);
  net->to(torch::kDouble);
  const auto x = torch::ones({2, 4}, torch::kDouble);
  EXPECT_EQ(told([&] { net->forward(x); }, {.ops = kAll}), kNames);
}

TEST(ModuleNames, AreThereInBackward) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(torch::nn::LinearOptions(4, 2).bias(false)));
  const ModuleNames names(net);
  const auto x = torch::ones({2, 4}, torch::requires_grad());
  Teller forward({.ops = {"addmm", "matmul"}}), backward({.backward = true, .ops = {"addmm", "matmul"}});
  Teller one({.backward = true, .ops = {"addmm", "matmul"}, .modules = {"1"}});
  amanda::Scope scope({&forward, &backward, &one});
  auto in = scope.enter();
  net->forward(x).sum().backward();
  EXPECT_EQ(backward.take().substr(0, 10), "matmul 1(1");
  EXPECT_EQ(one.take().substr(0, 10), "matmul 1(1");
}

TEST(ModuleNames, KeepLayersOnTheSameInputApart) {
  const auto plain = torch::nn::LinearOptions(4, 4).bias(false);
  torch::nn::Sequential net{{"q", torch::nn::Linear(plain)}, {"k", torch::nn::Linear(plain)}};
  for (torch::Tensor& parameter : net->parameters()) parameter.requires_grad_(false);
  const auto x = torch::ones({2, 4});
  const ModuleNames names(net);
  EXPECT_EQ(told(
                [&] {
                  for (int step = 0; step < 2; ++step) {
                    for (auto& layer : *net) layer.forward<torch::Tensor>(x);
                  }
                },
                {.ops = {"matmul"}}),
            "matmul q(q.weight), matmul k(k.weight)");
}

TEST(ModuleNames, FilterByModules) {
  Net net;
  const ModuleNames names(net);
  const auto run = [&] { net->forward(torch::ones({2, 4})); };
  EXPECT_EQ(told(run, {.ops = kAll, .modules = {"second.body"}}),
            "addmm second.body.0(second.body.0.bias second.body.0.weight), "
            "addmm second.body.2(second.body.2.bias second.body.2.weight)");
  EXPECT_EQ(told(run, {.ops = kAll, .modules = {"head"}}), "matmul head(head.weight)");
}

TEST(ModuleNames, GiveTheModuleThatHoldsAll) {
  Net net;
  const ModuleNames names(net);
  const auto& body = net->first->body;
  const auto run = [&] {
    const torch::NoGradGuard guard;
    torch::cat({body->ptr(0)->as<torch::nn::Linear>()->weight, body->ptr(2)->as<torch::nn::Linear>()->weight});
    torch::cat({net->first->scale, net->second->scale});
    net->first->scale.mul_(2);               // writes it
    torch::cos(net->first->scale.detach());  // no view, as far as autograd knows
  };
  EXPECT_EQ(told(run, {.ops = {"cat", "mul_", "cos"}}),
            "cat first.body([first.body.0.weight][first.body.2.weight]), cat ([first.scale][second.scale]), "
            "mul_ (first.scale), cos ()");
}

TEST(ModuleNames, GiveTheModuleThatHoldsAWeightWhichAnotherOneUses) {
  torch::nn::MultiheadAttention attention(4, 2);
  const ModuleNames names(attention);
  const auto x = torch::ones({3, 1, 4});
  EXPECT_EQ(
      told([&] { attention->forward(x, x, x); }, {.ops = amanda::pytorch::linear_like(), .modules = {"out_proj"}}),
      "matmul out_proj(out_proj.weight)");
}

TEST(ModuleNames, GiveNoModuleToAnUpdate) {
  torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(4, 2).bias(false)));
  const ModuleNames names(net);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions().weight_decay(0.1));
  net->forward(torch::ones({1, 4})).sum().backward();
  EXPECT_EQ(told([&] { adam.step(); }, {.ops = {"add", "addcdiv_", "mul_"}}),
            "add 0(0.weight), mul_ (), addcdiv_ (0.weight)");
}

TEST(ModuleNames, ASharedWeightHasItsFirstName) {
  auto tied = std::make_shared<torch::nn::Module>("tied");
  torch::nn::Embedding embedding(5, 4);
  torch::nn::Linear out(torch::nn::LinearOptions(4, 5).bias(false));
  tied->register_module("embedding", embedding);
  out->weight = embedding->weight;
  auto again = std::make_shared<torch::nn::Module>("again");
  again->register_parameter("weight", embedding->weight);
  tied->register_module("again", again);
  tied->register_module("same", embedding.ptr());
  const ModuleNames names(tied);
  EXPECT_EQ(told([&] { out->forward(embedding->forward(torch::zeros({1}, torch::kLong))); },
                 {.ops = {"embedding", "matmul"}}),
            "embedding embedding(embedding.weight), matmul embedding(embedding.weight)");
}

TEST(ModuleNames, KeepNothingAlive) {
  std::weak_ptr<torch::nn::Module> alive;
  torch::Tensor weight;
  Teller tool({.ops = {"cos"}});
  amanda::Scope scope(tool);
  auto in = scope.enter();
  {
    auto net = std::make_shared<NetImpl>();
    alive = net;
    const ModuleNames names(net);
    weight = net->head->weight;
    torch::cos(weight);
    EXPECT_EQ(tool.take(), "cos head(head.weight)");
    net.reset();
    EXPECT_TRUE(alive.expired());
    scope.cache_clear();
    torch::cos(weight);
    EXPECT_EQ(tool.take(), "cos ()");
  }
  scope.cache_clear();
  torch::cos(weight);
  EXPECT_EQ(tool.take(), "cos ()");
}

TEST(ModuleNames, EndWithTheObject) {
  NetImpl net;  // on the stack
  const auto run = [&] { torch::cos(net.head->weight); };
  {
    ModuleNames names(net), other(net);  // registered twice
    ModuleNames moved = std::move(names);
    EXPECT_EQ(told(run, {.ops = {"cos"}}), "cos head(head.weight)");
    other = ModuleNames(*net.head);
    EXPECT_EQ(told(run, {.ops = {"cos"}}), "cos head(head.weight)");
    moved = ModuleNames(*net.head);
    EXPECT_EQ(told(run, {.ops = {"cos"}}), "cos (weight)");
  }
  EXPECT_EQ(told(run, {.ops = {"cos"}}), "cos ()");
}

TEST(ModuleNames, AreThoseThatTheModelStillHas) {
  Net net;
  ModuleNames names(net);
  const torch::Tensor before = net->head->weight;
  net->head = net->replace_module("head", torch::nn::Linear(4, 2));
  const auto run = [&] {
    torch::cos(before);
    torch::sin(net->head->weight);
  };
  EXPECT_EQ(told(run, {.ops = {"cos", "sin"}}), "cos (), sin ()");
  names = ModuleNames(net);
  EXPECT_EQ(told(run, {.ops = {"cos", "sin"}}), "cos (), sin head(head.weight)");
}

TEST(ModuleNames, OfEqualModelsAreEqual) {
  torch::nn::Sequential one(torch::nn::Linear(2, 2)), other(torch::nn::Linear(2, 2));
  const ModuleNames of_one(one), of_other(other);
  const auto x = torch::ones({1, 2});
  EXPECT_EQ(told(
                [&] {
                  one->forward(x);
                  other->forward(x);
                  torch::cat({one->parameters()[0], other->parameters()[0]});
                },
                {.ops = {"addmm", "cat"}}),
            "addmm 0(0.bias 0.weight), addmm 0(0.bias 0.weight), cat ([0.weight][0.weight])");
}

TEST(ModuleNames, MayBeCreatedOnAnotherThreadWhileAScopeIsOpen) {
  Net net;
  const auto x = torch::ones({2, 4});
  Teller tool({.ops = kAll});
  amanda::Scope scope(tool);
  auto in = scope.enter();
  std::thread([&] {
    for (int i = 0; i < 100; ++i) ModuleNames names(net);
  }).join();
  net->forward(x);
  tool.take();
  scope.cache_clear();
  std::atomic<bool> stop = false;
  std::optional<ModuleNames> names;
  std::thread naming([&] {
    names.emplace(net);
    while (!stop) ModuleNames again(net);
  });
  while (!names) std::this_thread::yield();
  net->forward(x);
  stop = true;
  naming.join();
  EXPECT_EQ(tool.take(), kNames);
}

TEST(ModuleNames, NeedAModel) {
  const auto complaint = [](const auto& model) -> std::string {
    try {
      const ModuleNames names(model);
    } catch (const amanda::Error& error) {
      return error.what();
    }
    return "";
  };
  const char* const text =
      "[torch] ModuleNames: the model is null: its holder or pointer is empty; create the module first";
  EXPECT_EQ(complaint(torch::nn::Linear(nullptr)), text);
  EXPECT_EQ(complaint(std::shared_ptr<torch::nn::Module>()), text);
  EXPECT_EQ(complaint(torch::nn::ReLU()), "");  // it has nothing to name
}

}  // namespace
