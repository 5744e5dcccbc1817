// Does a call belong to the program? Not if it is traced with symbolic tensors, nor inside a backward operator.
#pragma once

#include "base/stack_value.h"

namespace amanda::pytorch {

/// Is the program being traced (compilation, export)? Then it does not run. `key_set`: the keys of the call.
bool is_traced(c10::DispatchKeySet key_set, c10::ArrayRef<OperandTensor> operands);
/// Does a backward operator run a part of the forward pass again, for a checkpoint?
bool is_recomputed();
/// Does the call belong to a backward operator? Its inner operators do; those that it recomputes do not.
bool belongs_to_backward();

}  // namespace amanda::pytorch
