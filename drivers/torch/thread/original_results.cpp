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

}  // namespace

OriginalResults::OriginalResults(OpType type, std::vector<c10::IValue> results)
    : type_(type), results_(std::move(results)), handles_(results_.size()) {
  for (size_t i = 0; i < results_.size(); ++i) {
    if (!results_[i].isTensor() || !can_have_handle(results_[i].toTensor())) continue;
    const at::Tensor& result = results_[i].toTensor();
    const at::Tensor handle = alias_of(result);
    take_over_edge(result, handle);
    if (handle.requires_grad() != result.requires_grad()) continue;
    handles_[i] = {ShownHandle(handle), version_of(result)};
  }
}

at::Tensor OriginalResults::shown(size_t position) const {
  const at::Tensor& handle = handles_[position].handle.tensor();
  return handle.defined() ? handle : results_[position].toTensor();
}

const c10::IValue* OriginalResults::behind(size_t position, const at::Tensor& value) const {
  if (position >= results_.size() || !results_[position].isTensor()) return nullptr;
  const at::Tensor& result = results_[position].toTensor();
  if (!value.defined() || !result.defined()) return value.defined() == result.defined() ? &results_[position] : nullptr;
  if (result.is_same(value)) return &results_[position];
  const auto& [handle, version] = handles_[position];
  return handle.stands_for(result, value) && version_of(value) == version ? &results_[position] : nullptr;
}

}  // namespace amanda::pytorch
