// Measures how much each step of a recurrent cell matters for the loss, by gradient times activation in LibTorch.
// Teaches: what routines share in one execution, forward and backward.
#include <torch/torch.h>

#include <cmath>
#include <iostream>
#include <map>

#include "amanda/torch.h"

struct Relevance : amanda::Tool {
  std::map<uint64_t, double> of_step;
  Relevance() : Tool("relevance") {
    struct Kept {
      torch::Tensor state;
    };
    add_inst_for_op(
        [](amanda::OpContext& op) {
          op.insert_after_op([](amanda::Values& outputs) {
            outputs.run<Kept>().state = amanda::pytorch::tensor(outputs[0]).detach();
          });
        },
        {.ops = {"tanh"}});
    add_inst_for_op(
        [this](amanda::OpContext& op) {
          if (op.backward_op()->name != "TanhBackward0") return;
          op.insert_before_backward_op([this](amanda::Values& gradients) {
            const torch::Tensor product = amanda::pytorch::tensor(gradients[0]) * gradients.run<Kept>().state;
            of_step[gradients.run_index().value()] = product.sum().item<double>();
          });
        },
        {.backward = true, .ops = {"tanh"}});
  }
};

int main() {
  torch::manual_seed(0);
  torch::nn::Linear cell(4, 4);
  const torch::Tensor x = torch::rand({1, 4});
  Relevance tool;
  amanda::Scope scope(tool);
  std::vector<torch::Tensor> states{x};
  {
    auto in = scope.enter();
    for (int step = 0; step < 4; ++step) {
      states.push_back(torch::tanh(cell(states.back())));
      states.back().retain_grad();
    }
    states.back().sum().backward();
  }
  bool right = tool.of_step.size() == 4;
  for (const auto& [step, relevance] : tool.of_step) {
    const torch::Tensor& state = states[step + 1];
    const double expected = (state.grad() * state.detach()).sum().item<double>();
    right = right && std::abs(relevance - expected) < 1e-6;
    std::cout << "step " << step << ": " << relevance << "\n";
  }
  std::cout << (right ? "as autograd's retained gradients say\n" : "wrong\n");
  return right ? 0 : 1;
}
