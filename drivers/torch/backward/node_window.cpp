#include "backward/node_window.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/variable.h>

#include "base/python_hooks.h"
#include "base/tensor_handle.h"

namespace amanda::pytorch {
namespace {

using torch::autograd::Node;

constexpr uint64_t kLeafNumber = UINT64_MAX;  // the sequence number of all AccumulateGrad nodes

// The same as grad_fn(), which locks each view.
Node* node_of(const at::Tensor& result) {
  const auto* const known = torch::autograd::impl::get_autograd_meta(result);
  if (!known) return nullptr;
  if (!known->is_view_) return known->grad_fn_.get();
  const auto& view = static_cast<const torch::autograd::DifferentiableViewMeta&>(*known);
  const bool is_current = view.grad_fn_ && view.has_bw_view() && view.get_attr_version() == result._version();
  return is_current ? view.grad_fn_.get() : node_behind(result);
}

/// Through the nodes whose numbers were assigned since `first`.
class Walk {
 public:
  explicit Walk(uint64_t first, NodeWindow::Made& made) : first_(first), made_(made) {
    made_.nodes.resize(at::sequence_number::peek() - first);  // by number; null if not found yet
    missing_ = made_.nodes.size();
  }

  void from(const at::Tensor& result) {
    if (missing_ == 0 || !result.defined() || !result.requires_grad()) return;
    if (Node* const node = node_of(result)) reach(*node);
    while (missing_ != 0 && !open_.empty()) {
      const Node* const node = open_.pop_back_val();
      for (const torch::autograd::Edge& edge : node->next_edges()) {
        if (edge.function) reach(*edge.function);
      }
    }
  }

  void end() {
    size_t met = 0;
    for (Node* const node : made_.nodes) {
      if (!node) continue;
      add_leaves(*node, met);
      made_.nodes[met++] = node;
    }
    made_.nodes.resize(met);
  }

 private:
  void reach(Node& node) {
    const uint64_t number = node.sequence_nr() - first_;
    if (number >= made_.nodes.size() || made_.nodes[number]) return;
    if (node.thread_id() != thread_) return;
    made_.nodes[number] = &node;
    open_.push_back(&node);
    --missing_;
  }

  void add_leaves(const Node& node, size_t index) {
    const torch::autograd::edge_list& edges = node.next_edges();
    for (size_t i = 0; i < edges.size(); ++i) {
      Node* const next = edges[i].function.get();
      if (next && next->sequence_nr() == kLeafNumber && !has_leaf(next)) made_.leaves.push_back({next, index, i});
    }
  }

  bool has_leaf(const Node* accumulate) const {
    for (const NodeWindow::Leaf& known : made_.leaves) {
      if (known.accumulate == accumulate) return true;
    }
    return false;
  }

  const uint64_t first_;
  const uint64_t thread_ = at::RecordFunction::currentThreadId();
  NodeWindow::Made& made_;
  size_t missing_ = 0;
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
  Made made;
  Walk walk(first_, made);
  for (const at::Tensor& result : results) walk.from(result);
  walk.end();
  return made;
}

NodeWindow::Made NodeWindow::made(c10::ArrayRef<OperandTensor> results) const {
  Made made;
  Walk walk(first_, made);
  for (const OperandTensor& result : results) walk.from(*result.tensor);
  walk.end();
  return made;
}

}  // namespace amanda::pytorch
