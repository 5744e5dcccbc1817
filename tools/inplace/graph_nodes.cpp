#include "inplace/graph_nodes.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_set>

namespace amanda::tools::pytorch {

GraphNodes::GraphNodes(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const torch::autograd::Node*> known;
  std::vector<const torch::autograd::Node*> waiting;
  const auto add = [&](const torch::autograd::Node* node) {
    if (node != nullptr && known.insert(node).second) waiting.push_back(node);
  };
  for (const at::Tensor& tensor : tensors) add(tensor.grad_fn().get());
  while (!waiting.empty()) {
    const torch::autograd::Node* node = waiting.back();
    waiting.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) add(edge.function.get());
    if (node->sequence_nr() <= INT64_MAX) numbers_.push_back(static_cast<int64_t>(node->sequence_nr()));
  }
  std::sort(numbers_.begin(), numbers_.end());
}

bool GraphNodes::has(int64_t number) const { return std::binary_search(numbers_.begin(), numbers_.end(), number); }

}  // namespace amanda::tools::pytorch
