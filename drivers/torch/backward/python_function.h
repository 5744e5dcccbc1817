// A torch.autograd.Function: not a dispatcher call, but treated as an operator because of its backward node.
#pragma once

#include <string>

#include "backward/node_window.h"

namespace amanda::pytorch {

/// Binds the nodes that `Function.apply` recorded since the start of `made`: the backward operators of
/// "autograd::NAME".
void bind_python_function(const std::string& name, const NodeWindow& made, c10::ArrayRef<c10::IValue> inputs,
                          c10::ArrayRef<at::Tensor> outputs);

}  // namespace amanda::pytorch
