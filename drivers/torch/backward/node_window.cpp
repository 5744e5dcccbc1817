#include "backward/node_window.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "base/python_hooks.h"
#include "base/tensor_handle.h"

namespace amanda::pytorch {
namespace {

using torch::autograd::Node;

constexpr uint64_t kLeafNumber = UINT64_MAX;  // the sequence number of all AccumulateGrad nodes

/// Through the nodes whose numbers were assigned since `first`.
class Walk {
 public:
  explicit Walk(uint64_t first) : first_(first), by_number_(at::sequence_number::peek() - first) {}

  void from(const at::Tensor& result) {
    if (by_number_.empty() || !result.defined() || !result.requires_grad()) return;
    if (const port::NodePtr& node = result.grad_fn()) reach(*node);
    while (!open_.empty()) {
      const Node* const node = open_.pop_back_val();
      for (const torch::autograd::Edge& edge : node->next_edges()) {
        if (edge.function) reach(*edge.function);
      }
    }
  }

  NodeWindow::Made made() const {
    NodeWindow::Made made;
    for (Node* const node : by_number_) {
      if (!node) continue;
      const torch::autograd::edge_list& edges = node->next_edges();
      for (size_t i = 0; i < edges.size(); ++i) {
        Node* const next = edges[i].function.get();
        if (!next || next->sequence_nr() != kLeafNumber) continue;
        if (std::none_of(made.leaves.begin(), made.leaves.end(),
                         [&](const NodeWindow::Leaf& known) { return known.accumulate == next; })) {
          made.leaves.push_back({next, made.nodes.size(), i});
        }
      }
      made.nodes.push_back(node);
    }
    return made;
  }

 private:
  void reach(Node& node) {
    const uint64_t number = node.sequence_nr() - first_;
    if (number >= by_number_.size() || by_number_[number]) return;
    if (node.thread_id() != thread_) return;
    by_number_[number] = &node;
    open_.push_back(&node);
  }

  const uint64_t first_;
  const uint64_t thread_ = at::RecordFunction::currentThreadId();
  SomeNodes by_number_;
  c10::SmallVector<Node*, 8> open_;
};

}  // namespace

SomeTensors all_levels(c10::ArrayRef<at::Tensor> tensors) {
  SomeTensors all;
  for (at::Tensor tensor : tensors) {
    if (tensor.defined()) all.push_back(tensor);
    while (tensor.defined() && tensor.key_set().has_any(kFunctorchWrappers) && python_hooks.unwrapped) {
      tensor = python_hooks.unwrapped(tensor);
      if (tensor.defined()) all.push_back(tensor);
    }
  }
  return all;
}

NodeWindow::NodeWindow() : first_(at::sequence_number::peek()) {}

bool NodeWindow::is_empty() const { return at::sequence_number::peek() == first_; }

NodeWindow::Made NodeWindow::made(c10::ArrayRef<at::Tensor> results) const {
  Walk walk(first_);
  for (const at::Tensor& result : results) walk.from(result);
  return walk.made();
}

NodeWindow::Made NodeWindow::made(c10::ArrayRef<OperandTensor> results) const {
  Walk walk(first_);
  for (const OperandTensor& result : results) walk.from(*result.tensor);
  return walk.made();
}

}  // namespace amanda::pytorch
