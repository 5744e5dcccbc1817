// Prints the module and the parameters of each linear layer of an unmodified torch::nn model.
// Teaches: ModuleNames, by which contexts know modules and parameters in a program without Python.
#include <torch/torch.h>

#include <iostream>

#include "amanda/torch.h"
#include "amanda/torch_modules.h"

struct NameLayers : amanda::Tool {
  NameLayers() : Tool("name_layers") {
    add_inst_for_op(
        [](amanda::OpContext& op) {
          std::cout << op.op().name << " in '" << op.module_path() << "':";
          for (size_t i = 0; i < op.num_inputs(); ++i) {
            const std::string name = op.parameter_name(i);
            if (!name.empty()) std::cout << " " << name;
          }
          std::cout << "\n";
        },
        {.ops = amanda::pytorch::linear_like()});
  }
};

struct Net : torch::nn::Module {
  torch::nn::Sequential encoder{torch::nn::Linear(3, 8), torch::nn::ReLU(), torch::nn::Linear(8, 8)};
  torch::nn::Linear head{torch::nn::LinearOptions(8, 2).bias(false)};
  Net() {
    register_module("encoder", encoder);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(encoder->forward(x)); }
};

int main() {
  Net net;
  const amanda::pytorch::ModuleNames names(net);  // as long as this object lives

  NameLayers tool;
  amanda::Scope scope(tool);
  auto in = scope.enter();
  net.forward(torch::rand({4, 3}));
}
