// The tensors of an operator that can be read here. Others need Python: wrappers, symbols, and tensors without
// elements.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "amanda/driver/backend.h"
#include "amanda/torch.h"
#include "output_bytes.h"

namespace amanda::tools::pytorch {

/// An operand; None if there is none.
inline const c10::IValue& operand(OpCall& call, Side side, size_t position) {
  static const auto* none = new c10::IValue;
  const Value value = call.get(side, position);
  return value.ref ? amanda::pytorch::ivalue(value) : *none;
}

/// True if the tensor is no wrapper, neither of a Python class nor of a transformation, and without symbols. Its sizes
/// can then be read.
inline bool is_plain(const at::Tensor& tensor) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kWrappers(
      {DispatchKey::Python, DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::Batched,
       DispatchKey::BatchedNestedTensor, DispatchKey::Functionalize, DispatchKey::FuncTorchDynamicLayerFrontMode});
  return !tensor.key_set().has_any(kWrappers) && !tensor.is_nested() &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

/// True if its elements are on the host, in the layout of its sizes and strides.
bool is_readable(const at::Tensor& tensor);

/// True if a transformation of torch.func runs here, such as vmap. Then operators wrap what they return.
inline bool is_transforming() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

/// In forward-mode differentiation a tensor carries another one. Wrappers of transformations outside of
/// the innermost one are not looked at.
inline bool has_tangent(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->autograd_meta() && tensor._fw_grad(/*level=*/0).defined();
}

/// Calls `fn(const at::Tensor&)` on each tensor of an operand, itself or the members of a list, until it returns false.
/// Returns false if it did, or if the operand is of an unknown kind.
template <class Fn>
bool each_tensor(const c10::IValue& operand, const Fn& fn) {
  if (operand.isTensor()) return !operand.toTensor().defined() || fn(operand.toTensor());
  if (operand.isList() || operand.isTuple()) {
    const auto members = operand.isTuple() ? c10::ArrayRef<c10::IValue>(operand.toTupleRef().elements().asArrayRef())
                                           : operand.toListRef();
    for (const c10::IValue& member : members) {
      if (!each_tensor(member, fn)) return false;
    }
    return true;
  }
  return operand.isNone() || operand.isScalar() || operand.isString() || operand.isDevice() || operand.isGenerator();
}

/// An OutputBytes.
std::optional<int64_t> output_bytes(OpCall& call);

}  // namespace amanda::tools::pytorch
