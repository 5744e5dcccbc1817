// The autograd nodes that a forward operator created.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "base/port.h"
#include "base/stack_value.h"

namespace amanda::pytorch {

// One per operator while tools see backward operators. Most operators have one result and few nodes, which needs no
// allocation.
using SomeTensors = c10::SmallVector<at::Tensor, 4>;
using SomeNodes = c10::SmallVector<torch::autograd::Node*, 8>;

/// Tensors that can have nodes: these, and under torch.func those of the levels below, which have their own graphs.
SomeTensors all_levels(c10::ArrayRef<at::Tensor> tensors);

/// Nodes created on one thread have increasing sequence numbers. So an operator's nodes are those that are reachable
/// from its results and whose numbers were assigned while it ran. (Not reachable: the node of an in-place operator on a
/// view. It is inside the CopySlices node, which runs it and counts as the operator's.)
class NodeWindow {
 public:
  NodeWindow();  // from now on

  /// A leaf's node, by the first edge that leads to it.
  struct Leaf {
    torch::autograd::Node* accumulate;
    size_t parent, edge;  // nodes[parent] is the node that has the edge; see `kOperand`
  };
  /// A leaf's parent, if a tool's own nodes lie between: then `edge` is the operand's position.
  static constexpr size_t kOperand = SIZE_MAX;
  /// Not owned: they live as long as the graph of the results. A reference to each would cost more than to find it.
  struct Made {
    SomeNodes nodes;  // in the order of creation
    c10::SmallVector<Leaf, 4> leaves;
  };
  /// True if no node was created until now.
  bool is_empty() const;
  /// The nodes created until now that are reachable from these tensors.
  Made made(c10::ArrayRef<at::Tensor> results) const;
  Made made(c10::ArrayRef<OperandTensor> results) const;

 private:
  uint64_t first_;
};

}  // namespace amanda::pytorch
