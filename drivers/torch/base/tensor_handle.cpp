#include "base/tensor_handle.h"

// clang-format off: declarations in the older vmap's header make calls in the other one ambiguous.
#include <ATen/functorch/BatchedTensorImpl.h>
// clang-format on
#include <ATen/LegacyBatchedTensorImpl.h>
#include <ATen/ops/detach.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>

namespace amanda::pytorch {

at::Tensor alias_of(const at::Tensor& tensor) {
  if (const auto* batched = at::maybeGetBatchedImpl(tensor)) {  // of the older vmap, which detach() does not know
    return at::makeBatched(alias_of(batched->value()), at::BatchDims(batched->bdims().begin(), batched->bdims().end()));
  }
  if (tensor.key_set().has(c10::DispatchKey::BatchedNestedTensor)) {  // vmap has no rule for detach() on these
    const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
    return at::functorch::makeBatched(alias_of(batched->value()), batched->bdim(), batched->level());
  }
  const c10::DispatchKeySet wrappers =
      kFunctorchWrappers | c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Batched});
  if (tensor.key_set().has_any(wrappers)) {
    c10::AutoGradMode no_grad(false);
    return tensor.detach();
  }
  c10::impl::ExcludeDispatchKeyGuard no_python(c10::python_ks);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (tensor.is_inference()) return at::Tensor(impl->shallow_copy_and_detach(c10::VariableVersion(), true));
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
}

namespace {

// A view that was created without gradients and is out of date has no edge any more: reading it is an error.
bool has_lost_edge(const at::Tensor& tensor) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  return view && view->has_bw_view() && view->get_creation_meta() != torch::autograd::CreationMeta::DEFAULT &&
         view->get_attr_version() != tensor._version();
}

}  // namespace

torch::autograd::Node* node_behind(const at::Tensor& tensor) {
  return has_lost_edge(tensor) ? nullptr : tensor.grad_fn().get();
}

void take_over_edge(const at::Tensor& old, const at::Tensor& handle) {
  if (!old.requires_grad() || has_lost_edge(old)) return;
  torch::autograd::impl::set_gradient_edge(handle, torch::autograd::impl::gradient_edge(old));
}

}  // namespace amanda::pytorch
