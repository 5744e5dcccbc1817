#include "replaced_node.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include "grad_hooks.h"

namespace amanda::pytorch {

ReplacedNode::ReplacedNode(port::NodePtr original, std::shared_ptr<NodeRecord> record)
    : Node(original->sequence_nr(), torch::autograd::edge_list(original->next_edges())),
      original_(std::move(original)),
      record_(std::move(record)) {
  for (size_t i = 0; i < original_->num_inputs(); ++i) input_metadata_.emplace_back(original_->input_metadata(i));
  // They are the tensors', which will have this node for their grad_fn.
  std::vector<size_t> retained;
  for (const auto& [output, hook] : original_->retains_grad_hooks()) retained.push_back(output);
  for (size_t output : retained) add_retains_grad_hook(original_->pop_retains_grad_hook(output), output);
  for (auto& hook : original_->tensor_pre_hooks()) add_tensor_pre_hook(std::move(hook));
  original_->tensor_pre_hooks().clear();
}

void ReplacedNode::release_variables() {
  original_->release_variables();
  // A long graph is taken apart in a loop, node by node, which must find nobody else with this node's edges: or it
  // would be taken apart by recursion, until the stack overflows.
  if (getptr().use_count() == 2) original_->next_edges().clear();
}

// The graph's cache looks at classes, and one class stands for all.
void ReplacedNode::compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const {
  args.collect(original_->name());
  original_->compiled_args(args);
}

variable_list ReplacedNode::apply(variable_list&& grad_outputs) {
  const NodeWindow window;
  CurrentScopes scopes = observing_scopes();
  scopes.hold();
  variable_list grad_inputs =
      scopes ? record_->run(*scopes, *original_, std::move(grad_outputs)) : (*original_)(std::move(grad_outputs));
  // With create_graph=True: a result that the original has saved leads to the original.
  if (c10::GradMode::is_enabled()) take_place_in(window.made(all_levels(grad_inputs)).nodes);
  return grad_inputs;
}

// In place: set_next_edge() is for nodes that nobody has an edge to. This one's depth in the graph is the original's.
void ReplacedNode::take_place_in(c10::ArrayRef<port::NodePtr> graph) {
  auto reroute = [this](Node& node) {
    for (torch::autograd::Edge& edge : node.next_edges()) {
      if (edge.function == original_) edge.function = getptr();
    }
  };
  for (const port::NodePtr& node : graph) {
    reroute(*node);
    // It runs another node, and insists on that one's having its own edges.
    if (auto* slices = dynamic_cast<torch::autograd::CopySlices*>(node.get()); slices && slices->fn) {
      reroute(*slices->fn);
    }
  }
}

namespace {

// A view's base has the edge, too, when an operator has changed the view in place.
void set_edges(const at::Tensor& tensor, const Node& old, const port::NodePtr& replaced) {
  if (!tensor.defined() || !tensor.requires_grad()) return;
  if (tensor.grad_fn().get() == &old) {
    torch::autograd::impl::set_gradient_edge(
        tensor, {replaced, static_cast<uint32_t>(torch::autograd::impl::gradient_edge(tensor).input_nr)});
  }
  if (tensor.is_view()) set_edges(at::Tensor(tensor._base()), old, replaced);
}

}  // namespace

void replace_node(Node& node, c10::ArrayRef<port::NodePtr> made, c10::ArrayRef<at::Tensor> results) {
  if (dynamic_cast<ReplacedNode*>(&node)) return;
  const port::NodePtr replaced = port::make_node<ReplacedNode>(node.getptr(), record_of(node));
  static_cast<ReplacedNode&>(*replaced).take_place_in(made);
  for (const at::Tensor& result : results) set_edges(result, node, replaced);
}

}  // namespace amanda::pytorch
