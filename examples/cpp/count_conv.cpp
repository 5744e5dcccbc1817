// Counts the runs of conv2d in an unmodified LibTorch network.
// Teaches: a tool, its analysis routine (once per operator), its instrumentation routine (every run), a scope.
#include <torch/torch.h>

#include <atomic>
#include <iostream>

#include "amanda/amanda.h"

struct CountConv : amanda::Tool {
  std::atomic<int64_t> runs = 0;
  CountConv() : Tool("count_conv") {
    add_inst_for_op([this](amanda::OpContext& op) { op.insert_before_op([this](amanda::Values&) { ++runs; }); },
                    {.ops = {"conv2d"}});
  }
};

int main() {
  torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3), torch::nn::ReLU(), torch::nn::Conv2d(8, 8, 3));
  const torch::Tensor x = torch::rand({1, 3, 32, 32});

  CountConv tool;
  amanda::Scope scope(tool);  // a handle; nothing happens yet
  for (int step = 0; step < 2; ++step) {
    auto in = scope.enter();  // a guard; a scope may be entered any number of times
    net->forward(x);
  }
  net->forward(x);  // outside: not counted

  std::cout << "conv2d ran " << tool.runs << " times in the scope\n";
  return tool.runs == 4 ? 0 : 1;
}
