// An operator's position in the flow of data: its identity in a program without Python.
#pragma once

#include <array>
#include <cstdint>

#include "base/stack_value.h"

namespace amanda::pytorch {

/// [d]: a hash of the operator and, to depth d, of the operators that its operands come from, in order.
///
/// Its length bounds the depth, so that a loop reaches a fixed number of contexts however long it runs.
using DataflowContext = std::array<uint64_t, 8>;

/// The context of a call on these arguments. Only operators that were observed on this thread count as producers.
/// Parameters (leaves that require a gradient, tensors of a model that has ModuleNames, and views of both) have
/// numbers; all other tensors count as equal.
DataflowContext dataflow_context(uint64_t name_hash, c10::ArrayRef<OperandTensor> arguments);

/// Remembers on this thread which call produced these results.
void remember_producer(const DataflowContext& context, c10::ArrayRef<OperandTensor> results);

}  // namespace amanda::pytorch
