// Ids in a program without Python: dataflow contexts.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "amanda/torch.h"

namespace {

struct Ids : amanda::Tool {
  std::vector<amanda::OpId> runs;
  explicit Ids(amanda::OpFilter ops = {}) : Tool("ids") {
    add_inst_for_op(
        [this](amanda::OpContext& op) {
          op.insert_before_op([this, id = op.op_id()](amanda::Values&) { runs.push_back(id); },
                              {.inputs = amanda::Positions::none()});
        },
        {.ops = std::move(ops)});
  }
};

template <class Program>
std::vector<amanda::OpId> ids(const Program& program, amanda::OpFilter ops = {}) {
  Ids tool(std::move(ops));
  amanda::Scope scope(tool);
  auto in = scope.enter();
  program();
  return tool.runs;
}

size_t distinct(const std::vector<amanda::OpId>& runs) { return std::set(runs.begin(), runs.end()).size(); }

TEST(Identity, IterationsHaveTheSameIds) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::ReLU(), torch::nn::Linear(4, 4), torch::nn::ReLU());
  const auto x = torch::ones({2, 4});
  const auto runs = ids([&] {
    for (int i = 0; i < 3; ++i) net->forward(x);
  });
  const size_t step = runs.size() / 3;
  ASSERT_GE(step, 4u);
  EXPECT_EQ(distinct(runs), step);
  EXPECT_TRUE(std::equal(runs.begin(), runs.begin() + step, runs.begin() + 2 * step));
}

TEST(Identity, ALoopOverWeightsKeepsThemApart) {
  std::vector<torch::Tensor> weights;
  for (int i = 0; i < 3; ++i) weights.push_back(torch::randn({4, 4}).requires_grad_());
  const auto x = torch::ones({2, 4});
  const auto runs = ids([&] {
    for (int step = 0; step < 2; ++step) {
      for (const auto& weight : weights) x.mm(weight);
    }
  });
  EXPECT_EQ(distinct(runs), 3u);
}

TEST(Identity, ALoopHasABoundedNumberOfIds) {
  const auto runs = ids([] {
    auto x = torch::ones({2});
    for (int i = 0; i < 1000; ++i) x = x + 1;
  });
  EXPECT_EQ(runs.size(), 1001u);
  EXPECT_LE(distinct(runs), 9u);
}

TEST(Identity, OperandOrderMatters) {
  const auto a = torch::ones({2}), b = torch::ones({2});
  const auto runs = ids(
      [&] {
        const auto p = a.sin(), q = b.cos();
        p - q;
        q - p;
      },
      {"sub", "sin", "cos"});
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_NE(runs[2], runs[3]);
}

TEST(Identity, FreedTensorsLeaveNoTrace) {
  const auto weight = torch::ones({2}).requires_grad_();
  std::set<amanda::OpId> seen;
  for (int i = 0; i < 50; ++i) {
    const auto runs = ids([&] { (torch::rand({2}) * weight).sum(); });
    seen.insert(runs.back());
  }
  EXPECT_EQ(seen.size(), 1u);
}

}  // namespace
