// Runs other code instead of an autograd node's own. The node stays the same object, at the same place in the graph.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace amanda::pytorch {

// NOTE: [overriding a node] If a new node replaced the original, every reference to the original would have to change.
// Such references are in tensors and their views, in edges, in Python's grad_fn and ctx, and in results that a node
// saved of itself, which refer back to it. The last kind cannot be changed from outside. Two nodes for one operator
// would then share its gradient, and the last bits would differ; or one of them is freed first, and the gradient is
// lost.
//
// So the node stays, and only its apply() is exchanged: its virtual table pointer is set to a copy of its class's table
// with another apply(). The layout is that of the Itanium C++ ABI, which all compilers that PyTorch supports on Linux
// and macOS use; can_override_nodes() tests it.

/// True if overriding works with the loaded PyTorch. Tested once, on a node created for this purpose.
bool can_override_nodes();

/// From now on the engine runs `instead` in place of the node's own apply(). All nodes of a class have the same
/// `instead`. Does nothing if the node is overridden already. May be called while other threads run the node.
using Instead = torch::autograd::variable_list (*)(torch::autograd::Node&, torch::autograd::variable_list&&);
void override_apply(torch::autograd::Node& node, Instead instead);

/// Runs the node's own code, overridden or not.
torch::autograd::variable_list run_original(torch::autograd::Node& node, torch::autograd::variable_list&& grad_outputs);

}  // namespace amanda::pytorch
