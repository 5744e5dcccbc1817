// Which autograd nodes a forward operator made.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "base/port.h"

namespace amanda::pytorch {

// For each operator while somebody sees backward operators: most have one result and few nodes, and allocate nothing.
using SomeTensors = c10::SmallVector<at::Tensor, 4>;
using SomeNodes = c10::SmallVector<port::NodePtr, 4>;

/// Tensors that can have nodes: these, and under torch.func those of the levels below, which have graphs of their own.
SomeTensors all_levels(c10::ArrayRef<at::Tensor> tensors);

/// Nodes made on one thread have increasing sequence numbers, so an operator's own are those that its results lead to
/// and whose numbers were given out while it ran. (Not reached: what an in-place operator on a view would have as a
/// node of its own. It is inside the CopySlices node, which runs it, and which counts as the operator's.)
class NodeWindow {
 public:
  NodeWindow();  // from now on

  /// A node that stands for a leaf, by the first edge that leads to it.
  struct Leaf {
    port::NodePtr accumulate;
    size_t parent, edge;  // nodes[parent] is the node that has the edge; see `kOperand`
  };
  /// A leaf's parent, where a tool's own nodes lie between: then `edge` is the operand's position.
  static constexpr size_t kOperand = SIZE_MAX;
  struct Made {
    SomeNodes nodes;  // in the order they were made
    c10::SmallVector<Leaf, 2> leaves;
  };
  /// Was no node at all made until now?
  bool is_empty() const;
  /// What was made until now, as far as these tensors lead to it.
  Made made(c10::ArrayRef<at::Tensor> results) const;

 private:
  uint64_t first_;
};

}  // namespace amanda::pytorch
