// A tensor that a routine is shown through another handle.
#pragma once

#include <ATen/core/Tensor.h>

namespace amanda::pytorch {

/// While nothing but the memory that both share was changed, the handle stands for the tensor.
class ShownHandle {
 public:
  ShownHandle() = default;  // the tensor is shown as itself, or there is none
  /// `handle`: made of `tensor` by alias_of() and take_over_edge(), just now.
  explicit ShownHandle(at::Tensor handle)
      : handle_(std::move(handle)), node_(handle_.grad_fn().get()), requires_grad_(handle_.requires_grad()) {}

  const at::Tensor& tensor() const { return handle_; }
  /// True if `value` is the handle, unchanged, and `original` is still the same memory.
  bool stands_for(const at::Tensor& original, const at::Tensor& value) const;

 private:
  at::Tensor handle_;
  const torch::autograd::Node* node_ = nullptr;  // only compared
  bool requires_grad_ = false;
};

}  // namespace amanda::pytorch
