#include "thread/original_results.h"

#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "base/stack_value.h"
#include "base/tensor_handle.h"

namespace amanda::pytorch {
namespace {

uint32_t version_of(const at::Tensor& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? version.current_version() : 0;
}

// A routine computes with the handle, so everything recorded on the tensor must also hold for it.
bool can_have_handle(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kWrappers(
      {c10::DispatchKey::Python, c10::DispatchKey::Batched, c10::DispatchKey::BatchedNestedTensor});
  if (!tensor.defined() || py_object(tensor) || tensor.key_set().has_any(kFunctorchWrappers | kWrappers)) return false;
  if (tensor.requires_grad() && tensor.is_leaf()) return false;
  return !torch::autograd::ForwardADLevel::try_get_by_idx(0) || !tensor._fw_grad(0).defined();
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  if (!a.has_storage() || !b.has_storage()) return true;
  return a.storage().is_alias_of(b.storage()) && a.storage_offset() == b.storage_offset() && same_shape(a, b) &&
         (a.is_nested() || a.strides().equals(b.strides()));
}

}  // namespace

OriginalResults::OriginalResults(OpType type, std::vector<c10::IValue> results)
    : type_(type), results_(std::move(results)), handles_(results_.size()) {
  for (size_t i = 0; i < results_.size(); ++i) {
    if (!results_[i].isTensor() || !can_have_handle(results_[i].toTensor())) continue;
    const at::Tensor& result = results_[i].toTensor();
    handles_[i] = {alias_of(result), version_of(result)};
    take_over_edge(result, handles_[i].tensor);
  }
}

at::Tensor OriginalResults::shown(size_t position) const {
  const Handle& handle = handles_[position];
  return handle.tensor.defined() ? handle.tensor : results_[position].toTensor();
}

const c10::IValue* OriginalResults::behind(size_t position, const at::Tensor& value) const {
  if (position >= results_.size() || !results_[position].isTensor()) return nullptr;
  const at::Tensor& result = results_[position].toTensor();
  if (!value.defined() || !result.defined()) return value.defined() == result.defined() ? &results_[position] : nullptr;
  const Handle& handle = handles_[position];
  const bool unchanged = handle.tensor.is_same(value) && version_of(value) == handle.version &&
                         value.requires_grad() == result.requires_grad() && value.grad_fn() == result.grad_fn() &&
                         !value.retains_grad() && same_memory(value, result);
  return unchanged ? &results_[position] : nullptr;
}

}  // namespace amanda::pytorch
