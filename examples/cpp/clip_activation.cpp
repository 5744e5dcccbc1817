// Clips what every relu of a LibTorch network returns.
// Teaches: reading and replacing tensors from C++ (amanda/torch.h).
#include <torch/torch.h>

#include <iostream>

#include "amanda/torch.h"

struct ClipActivation : amanda::Tool {
  explicit ClipActivation(double limit) : Tool("clip_activation") {
    add_inst_for_op(
        [limit](amanda::OpContext& op) {
          op.insert_after_op([limit](amanda::Values& outputs) {
            amanda::pytorch::set(outputs, 0, amanda::pytorch::tensor(outputs[0]).clamp_max(limit));
          });
        },
        {.ops = {"relu"}});
  }
};

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(16, 16), torch::nn::ReLU());
  const torch::Tensor x = 10 * torch::rand({8, 16});
  auto largest = [&] { return net->forward(x).max().item<float>(); };

  ClipActivation tool(0.1);
  amanda::Scope scope(tool);
  float inside;
  {
    auto in = scope.enter();
    inside = largest();
  }
  std::cout << "largest activation: " << inside << " inside, " << largest() << " outside\n";
  return inside <= 0.1f ? 0 : 1;
}
