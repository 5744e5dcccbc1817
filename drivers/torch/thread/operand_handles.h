// The operands of a replaced operator, as its replacement is shown them.
#pragma once

#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

#include "base/shown_handle.h"

namespace amanda::pytorch {

/// The operands that a replacement is shown through other handles. If it calls an operator with such a handle, the
/// operator gets the operand itself: a result may be a view of it, and writes to it are recorded on it.
class OperandHandles {
 public:
  void add(const at::Tensor& handle, const at::Tensor& operand) { shown_.emplace_back(ShownHandle(handle), operand); }
  /// The operand behind `value`, or behind its members; `value` itself, if it is no unchanged handle.
  const at::Tensor& behind(const at::Tensor& value) const;
  c10::IValue behind(const c10::IValue& value) const;

 private:
  std::vector<std::pair<ShownHandle, at::Tensor>> shown_;
};

}  // namespace amanda::pytorch
