#include "forward/boxed_operator.h"

#include <algorithm>

namespace amanda::pytorch {

bool BoxedOperator::runs_unseen(c10::ArrayRef<OperandTensor> operands) const {
  constexpr c10::DispatchKeySet kPython({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  constexpr c10::DispatchKeySet kBatched({c10::DispatchKey::Batched, c10::DispatchKey::BatchedNestedTensor});
  if (below_ && below_->has_any(kPython)) return false;
  return std::none_of(operands.begin(), operands.end(), [&](const OperandTensor& operand) {
    return operand.tensor->key_set().has_any(kPython | kBatched);
  });
}

}  // namespace amanda::pytorch
