// Identifies the place of an operator call in the program.
#pragma once

#include "base/op_types.h"
#include "base/stack_value.h"
#include "identity/dataflow.h"

namespace amanda::pytorch {

struct Identity {
  OpId id = 0;
  uint64_t raw_path = 0;     // the key for PythonHooks::describe; 0: no Python ran
  DataflowContext dataflow;  // used if no Python ran
};

/// If Python runs: a hash of the operator, its call path, and the parameters it uses. Otherwise: of the operator and
/// its dataflow context. The id is 0 only if computing it failed.
///
/// A known call costs a walk over the Python frames and one lookup, without allocation.
Identity identify(const OpRecord& record, c10::ArrayRef<OperandTensor> arguments);

}  // namespace amanda::pytorch
