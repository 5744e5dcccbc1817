// Values that stand in for others: handles that share no autograd state, and the gradient edges they take over.
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

/// A new handle on `value` that passes gradients and tangents straight through to `old`, as far as the program records.
/// Where the shapes differ it passes none, and that is said.
at::Tensor stand_in_for(const at::Tensor& old, const at::Tensor& value);

/// `value`, as it is to stand in the place of `old` (design 1.4): what a routine recorded keeps its graph; any other
/// value takes over the gradient edge of `old` where the program records. `value` itself is never changed.
at::Tensor in_place_of(const at::Tensor& old, const at::Tensor& value);

}  // namespace amanda::pytorch
