// Is a call the program's own? Not where somebody traces it with stand-in tensors, nor inside a backward operator.
#pragma once

#include "base/stack_value.h"

namespace amanda::pytorch {

/// Does somebody trace the program (compilation, export)? It does not run, then.
/// `key_set`: with which the call came in.
bool is_traced(c10::DispatchKeySet key_set, c10::ArrayRef<OperandTensor> operands);
/// Does a backward operator run a part of the forward pass again, for a checkpoint?
bool is_recomputed();
/// Operators that a backward operator is made of belong to it; those that it recomputes do not.
bool belongs_to_backward();

}  // namespace amanda::pytorch
