// Finds the largest tensor that any operator of a LibTorch program reads.
// Teaches: Backend::describe, by which a tool reads sizes, dtypes and bytes without including a framework.
#include <torch/torch.h>

#include <atomic>
#include <iostream>

#include "amanda/amanda.h"

struct LargestInput : amanda::Tool {
  std::atomic<int64_t> bytes = 0;
  LargestInput() : Tool("largest_input") {
    add_inst_for_op([this](amanda::OpContext& op) {
      for (size_t i = 0; i < op.num_inputs(); ++i) {
        const amanda::ValueInfo input = op.backend().describe(op.input(i));
        if (input.kind == amanda::ValueKind::kTensor && input.bytes > bytes) bytes = input.bytes;
      }
    });
  }
};

int main() {
  LargestInput tool;
  amanda::Scope scope(tool);
  {
    auto in = scope.enter();
    torch::relu(torch::zeros({3, 5}));
    torch::mm(torch::zeros({4, 8}), torch::zeros({8, 16}));
  }
  std::cout << "the largest input has " << tool.bytes << " bytes\n";
  return tool.bytes == 8 * 16 * 4 ? 0 : 1;
}
