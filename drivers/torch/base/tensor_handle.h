// A second handle on a tensor.
#pragma once

#include <ATen/core/Tensor.h>

namespace amanda::pytorch {

/// Tensors with these keys wrap another one, for torch.func.
inline constexpr c10::DispatchKeySet kFunctorchWrappers({c10::DispatchKey::FuncTorchBatched,
                                                         c10::DispatchKey::FuncTorchGradWrapper});

/// A new handle on the same data and version counter, without autograd state. Runs no code that a user could observe,
/// except for wrappers (Python subclasses, torch.func's), because only their own detach() can create a handle.
at::Tensor alias_of(const at::Tensor& tensor);

/// The tensor's grad_fn. Null also where reading that would raise an error: at a view that was created without
/// gradients and is out of date.
torch::autograd::Node* node_behind(const at::Tensor& tensor);

/// Sets the gradient edge of `handle` to that of `old`, if it has one.
void take_over_edge(const at::Tensor& old, const at::Tensor& handle);

}  // namespace amanda::pytorch
