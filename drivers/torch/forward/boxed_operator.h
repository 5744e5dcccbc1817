// The operator of a call on the boxed stack.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

#include "base/stack_value.h"

namespace amanda::pytorch {

/// Runs an operator on the stack, below the driver's own kernel if it was called there.
class BoxedOperator {
 public:
  BoxedOperator(const c10::OperatorHandle& op, std::optional<c10::DispatchKeySet> below) : op_(op), below_(below) {}

  void run(torch::jit::Stack& stack) const { below_ ? op_.redispatchBoxed(*below_, &stack) : op_.callBoxed(&stack); }
  /// False for a call that starts from the top: it is a tool's own.
  bool is_programs() const { return below_.has_value(); }
  /// True if no mode and no subclass of the program sees that it runs on these operands.
  bool runs_unseen(c10::ArrayRef<OperandTensor> operands) const;

 private:
  const c10::OperatorHandle& op_;
  const std::optional<c10::DispatchKeySet> below_;  // without a value, the call starts from the top
};

}  // namespace amanda::pytorch
