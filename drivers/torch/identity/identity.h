// Which place of the program an operator call is, and which parameters are its operands.
#pragma once

#include <string>

#include "base/op_types.h"
#include "base/stack_value.h"
#include "identity/dataflow.h"

namespace amanda::pytorch {

struct Identity {
  OpId id = 0;
  uint64_t raw_path = 0;     // what PythonHooks::describe finds the place by; 0: no Python ran
  DataflowContext dataflow;  // where no Python ran
};

/// Where Python runs: the operator, its call path, and which parameters it works on (design 1.6). Elsewhere: the
/// operator and its dataflow context. The id is 0 only where finding it failed.
///
/// A call known from before costs a walk over the Python frames and one lookup; it allocates nothing.
Identity identify(const OpRecord& record, c10::ArrayRef<OperandTensor> arguments);

/// See Backend::parameter_name.
std::string parameter_name(const at::Tensor& tensor);

}  // namespace amanda::pytorch
