// Runs other code where an autograd node would run its own. The node stays the same object, in the same place.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace amanda::pytorch {

// NOTE: [overriding a node]
// A node that takes the place of another one must be known to everybody who knows the original: tensors and their
// views, edges, Python's grad_fn and ctx, and results that a node saved of itself, which lead to the node that saved
// them. The last of these cannot be changed from outside. Two nodes for one operator then share its gradient, and the
// last bits differ; or one of them is freed first, and the gradient is lost.
//
// So the node stays, and only its apply() is exchanged: its pointer to the virtual table is set to a copy of its
// class's table with another apply(). The layout is that of the Itanium C++ ABI, which all compilers that PyTorch
// supports on Linux and macOS follow; can_override_nodes() tests it.

/// Does overriding work with the PyTorch that is loaded? Tested once, on a node made for this purpose.
bool can_override_nodes();

/// From now on the engine runs `instead` where it would run the node's own apply(). All nodes of a class have the same
/// `instead`. Does nothing if the node is overridden already. May be called while other threads run the node.
using Instead = torch::autograd::variable_list (*)(torch::autograd::Node&, torch::autograd::variable_list&&);
void override_apply(torch::autograd::Node& node, Instead instead);

/// Runs the node's own code, overridden or not.
torch::autograd::variable_list run_original(torch::autograd::Node& node, torch::autograd::variable_list&& grad_outputs);

}  // namespace amanda::pytorch
