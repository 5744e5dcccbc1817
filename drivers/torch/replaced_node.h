// An autograd node that runs tools' replacements in place of another, which then need not run.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "grad_map.h"

namespace amanda::pytorch {

class NodeRecord;

/// It has the original's place in the graph, its number and its name, and holds it: where the tools are not active any
/// more, the original runs.
class ReplacedNode final : public Node {
 public:
  ReplacedNode(port::NodePtr original, std::shared_ptr<NodeRecord> record);

  std::string name() const override { return original_->name(); }
  void release_variables() override;
  void will_release_variables() override { original_->will_release_variables(); }
  // A compiled backward pass runs the original.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;
  variable_list apply_with_saved(const variable_list& grad_outputs,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    return original_->apply_with_saved(grad_outputs, saved);
  }
  /// Every edge of these nodes that leads to the original leads here.
  void take_place_in(c10::ArrayRef<port::NodePtr> graph);
  const std::shared_ptr<NodeRecord>& record() const { return record_; }

 protected:
  variable_list apply(variable_list&& grad_outputs) override;

 private:
  port::NodePtr original_;
  std::shared_ptr<NodeRecord> record_;
};

/// Puts a ReplacedNode in the node's place, in the graph that `made`, its siblings, and `results` are: right after the
/// forward operator, before anything else has an edge to it. A node that is replaced already stays so.
void replace_node(Node& node, c10::ArrayRef<port::NodePtr> made, c10::ArrayRef<at::Tensor> results);

}  // namespace amanda::pytorch
