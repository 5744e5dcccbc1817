#include "backward/node_window.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "base/python_hooks.h"
#include "base/tensor_handle.h"

namespace amanda::pytorch {
namespace {

constexpr uint64_t kLeafNumber = UINT64_MAX;  // the sequence number of all AccumulateGrad nodes

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
  const uint64_t count = at::sequence_number::peek() - first_;
  if (count == 0) return {};
  Made made;
  const uint64_t thread = at::RecordFunction::currentThreadId();
  SomeNodes by_number(count);
  c10::SmallVector<torch::autograd::Node*, 8> open;
  auto reach = [&](const port::NodePtr& node) {
    const uint64_t number = node->sequence_nr() - first_;
    if (number >= count || by_number[number]) return;
    if (node->thread_id() != thread) return;
    by_number[number] = node;
    open.push_back(node.get());
  };
  for (const at::Tensor& result : results) {
    if (!result.defined() || !result.requires_grad()) continue;
    if (const port::NodePtr& node = result.grad_fn()) reach(node);
  }
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.function) reach(edge.function);
    }
  }
  for (port::NodePtr& node : by_number) {
    if (node) made.nodes.push_back(std::move(node));
  }
  for (size_t i = 0; i < made.nodes.size(); ++i) {
    const torch::autograd::edge_list& edges = made.nodes[i]->next_edges();
    for (size_t j = 0; j < edges.size(); ++j) {
      const port::NodePtr& next = edges[j].function;
      if (!next || next->sequence_nr() != kLeafNumber) continue;
      if (std::none_of(made.leaves.begin(), made.leaves.end(),
                       [&](const Leaf& known) { return known.accumulate == next; })) {
        made.leaves.push_back({next, i, j});
      }
    }
  }
  return made;
}

}  // namespace amanda::pytorch
