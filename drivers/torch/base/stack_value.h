// Operands on a boxed stack: visits their tensors, and checks whether one value can replace another.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

struct _object;  // PyObject

namespace amanda::pytorch {

/// A defined tensor among a call's operands. The members of a list share its position.
struct OperandTensor {
  size_t position;
  const at::Tensor* tensor;  // points to the operand
};
using OperandTensors = c10::SmallVector<OperandTensor, 8>;

/// Calls `fn(const at::Tensor&)` on every defined tensor of one operand: itself, or the members of a list.
template <class Fn>
void each_tensor(const c10::IValue& operand, const Fn& fn) {
  if (operand.isTensor()) {
    if (operand.toTensor().defined()) fn(operand.toTensor());
  } else if (operand.isList()) {
    for (const c10::IValue& member : operand.toListRef()) {
      if (member.isTensor() && member.toTensor().defined()) fn(member.toTensor());
    }
  }
}

OperandTensors tensors_of(c10::ArrayRef<c10::IValue> operands);

/// True if it is a symbol, a number that a tracer leaves open. The length of a jagged dimension is none: programs run
/// with such lengths.
bool is_symbol(const c10::SymInt& number);
bool is_symbol(const c10::IValue& operand);  // or a list of numbers that contains one

/// The tensor's Python object, borrowed; null if it has none yet.
inline _object* py_object(const at::TensorBase& tensor) {
  return reinterpret_cast<_object*>(tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj());
}

bool same_shape(const at::Tensor& a, const at::Tensor& b);

/// The weighted sum of the version counters: changes when a tensor is changed in place.
uint64_t version_sum(c10::ArrayRef<OperandTensor> operands);
/// Without the operands at the positions `written`, and those that share memory with them.
uint64_t version_sum_besides(c10::ArrayRef<size_t> written, c10::ArrayRef<OperandTensor> operands);

/// Throws `Error` (a reason only) unless `value` can replace `old`: it must have the argument's type, and a tensor the
/// same dtype and device.
void check_stand_in(const c10::Argument& argument, const c10::IValue& old, const c10::IValue& value);
void check_stand_in(at::ScalarType dtype, c10::Device device, const at::Tensor& value);

}  // namespace amanda::pytorch
