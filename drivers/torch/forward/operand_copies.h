// Private copies of operands that an operator writes to, and what goes back from them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace amanda::pytorch {

/// The same values and strides in other memory, for a tensor or a list of tensors; anything else itself. A copy takes
/// over the gradient edge, if the program records.
at::Tensor private_copy(const at::Tensor& tensor);
c10::IValue private_copy(const c10::IValue& operand);

/// `list` with one tensor for all members that are one tensor in `old`: the operator writes to it through each of them.
c10::IValue with_same_members(const c10::IValue& old, const c10::IValue& list);

/// Copies the values of a tensor, or of a list's members, into others. Recorded, if the program records.
void assign(const c10::IValue& target, const c10::IValue& value);

/// True if they are the same bit for bit, except for the sign of zero and the kinds of NaN.
bool same_values(const at::Tensor& a, const at::Tensor& b);

/// Throws Error (a reason only) if `given` cannot replace a list whose members an operator writes to.
void check_members(const c10::IValue& old, const c10::IValue& given);

/// Null if it has none. Only compared.
inline const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace amanda::pytorch
