// Clips the gradient of one layer's weight, in an unmodified LibTorch network.
// Teaches: backward operators from C++.
#include <torch/torch.h>

#include <iostream>

#include "amanda/torch.h"

/// Limits the norm of gradients that parameters of this shape accumulate.
struct ClipGradient : amanda::Tool {
  ClipGradient(std::vector<int64_t> shape, double limit) : Tool("clip_gradient") {
    add_inst_for_op(
        [shape, limit](amanda::OpContext& op) {
          // The backward operator of a parameter; its only operand is the gradient.
          if (op.backward_op()->name != "AccumulateGrad") return;
          if (amanda::pytorch::tensor(op.grad_output(0)).sizes() != shape) return;
          op.insert_before_backward_op([limit](amanda::Values& gradient) {
            const torch::Tensor full = amanda::pytorch::tensor(gradient[0]);
            amanda::pytorch::set(gradient, 0, full * (limit / full.norm()).clamp_max(1));
          });
        },
        {.backward = true});
  }
};

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4));
  const torch::Tensor x = torch::rand({8, 16});
  auto norm_of_gradient = [&](size_t layer) {
    return net[layer]->named_parameters()["weight"].grad().norm().item<float>();
  };

  ClipGradient tool({4, 32}, 0.5);
  amanda::Scope scope(tool);
  {
    auto in = scope.enter();
    net->forward(x).sum().backward();
  }
  const float clipped = norm_of_gradient(2), other = norm_of_gradient(0);
  net->zero_grad();
  net->forward(x).sum().backward();
  std::cout << "norm of the last layer's gradient: " << clipped << " inside, " << norm_of_gradient(2) << " outside\n"
            << "norm of the first layer's gradient: " << other << " inside, " << norm_of_gradient(0) << " outside\n";
  return clipped <= 0.501f && other == norm_of_gradient(0) ? 0 : 1;
}
