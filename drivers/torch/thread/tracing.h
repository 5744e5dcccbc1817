// Tests whether a call belongs to the program. It does not if it is traced with symbolic tensors, or inside a backward
// operator.
#pragma once

#include "base/stack_value.h"

namespace amanda::pytorch {

/// True if the program is being traced (compilation, export). It then does not run. `key_set`: the keys of the call.
bool is_traced(c10::DispatchKeySet key_set, c10::ArrayRef<OperandTensor> operands);
/// True if a backward operator runs a part of the forward pass again, for a checkpoint.
bool is_recomputed();
/// True if the call belongs to a backward operator. Its inner operators do; those that it recomputes do not.
bool belongs_to_backward();

}  // namespace amanda::pytorch
