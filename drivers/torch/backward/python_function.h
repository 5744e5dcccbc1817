// A torch.autograd.Function: no dispatcher call, but an operator all the same, for its backward node's sake.
#pragma once

#include <string>
#include <vector>

#include "backward/node_window.h"

namespace amanda::pytorch {

/// Binds what `Function.apply` recorded since `made` began: the backward operators of "autograd::NAME".
void bind_python_function(const std::string& name, const NodeWindow& made, c10::ArrayRef<c10::IValue> inputs,
                          c10::ArrayRef<at::Tensor> outputs);

}  // namespace amanda::pytorch
