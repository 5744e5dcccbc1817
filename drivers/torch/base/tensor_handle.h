// A second handle on a tensor.
#pragma once

#include <ATen/core/Tensor.h>

namespace amanda::pytorch {

/// Tensors with these keys wrap another one, for torch.func.
inline constexpr c10::DispatchKeySet kFunctorchWrappers({c10::DispatchKey::FuncTorchBatched,
                                                         c10::DispatchKey::FuncTorchGradWrapper});

/// A new handle on the same data and version counter, without autograd state. Runs nothing that a user could see,
/// except for wrappers (a Python subclass, torch.func's), whose handles only their own detach() can make.
at::Tensor alias_of(const at::Tensor& tensor);

/// Gives `handle` the gradient edge of `old`, if that has one.
void take_over_edge(const at::Tensor& old, const at::Tensor& handle);

}  // namespace amanda::pytorch
