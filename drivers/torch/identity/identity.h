// Identifies the place of an operator call in the program, and the parameters among its operands.
#pragma once

#include <string>

#include "base/op_types.h"
#include "base/stack_value.h"
#include "identity/dataflow.h"

namespace amanda::pytorch {

/// The place of a call, in addresses.
struct RawPlace {
  uint64_t path = 0;            // the key for PythonHooks::describe; 0 if no Python ran
  uint64_t key = 0, epoch = 0;  // of the path, the operator and its parameters; the same in this epoch only
};
/// `walk`: ThreadKeys::walk of this thread.
RawPlace raw_place(void*& walk, const OpRecord& record, c10::ArrayRef<OperandTensor> arguments);

struct Identity {
  OpId id = 0;
  uint64_t raw_path = 0;        // the key for PythonHooks::describe; 0 if no Python ran
  uint64_t key = 0, epoch = 0;  // of the RawPlace by which the id was found; 0 if it was not known before
  DataflowContext dataflow{};   // used if no Python ran
};

/// If Python runs, the id is a hash of the operator, its call path, and the parameters it uses. Otherwise it is a hash
/// of the operator and its dataflow context. The id is 0 only if computing it failed.
///
/// A known call costs a walk over the Python frames and one lookup, without allocation. `raw`: the latest result of
/// raw_place() for it, or empty.
Identity identify(const OpRecord& record, c10::ArrayRef<OperandTensor> arguments, RawPlace raw = {});

/// See Backend::parameter_name.
std::string parameter_name(const at::Tensor& tensor);

}  // namespace amanda::pytorch
