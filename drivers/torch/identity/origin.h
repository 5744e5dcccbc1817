// The tensor behind a view, and the leaves that are trained, without virtual calls.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace amanda::pytorch {

/// Null if the tensor has none.
inline const torch::autograd::AutogradMeta* autograd_of(const at::TensorBase& tensor) {
  return static_cast<torch::autograd::AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
}

/// The tensor that one with this state is a view of. Null if it is no view.
inline const at::Tensor* base_of(const torch::autograd::AutogradMeta& autograd) {
  if (!autograd.is_view_) return nullptr;
  const auto& view = static_cast<const torch::autograd::DifferentiableViewMeta&>(autograd);
  return view.has_bw_view() ? &view.get_backward_view().base_ : nullptr;
}

/// True for a leaf that requires a gradient. Not for views: PyTorch calls them leaves when no gradients are recorded.
inline bool is_trained_leaf(const torch::autograd::AutogradMeta& autograd) {
  return autograd.requires_grad_ && !autograd.grad_fn_;
}

/// The tensor that it is a view of; itself if it is none.
inline const at::Tensor& origin_of(const at::Tensor& tensor) {
  const auto* autograd = autograd_of(tensor);
  const at::Tensor* base = autograd ? base_of(*autograd) : nullptr;
  return base ? *base : tensor;
}

}  // namespace amanda::pytorch
