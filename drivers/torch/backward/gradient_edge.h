// Values that stand in for others, and the gradient edges they take over.
#pragma once

#include <ATen/core/Tensor.h>

namespace amanda::pytorch {

/// A new handle on `value` that passes gradients and tangents straight through to `old`, as far as the program records.
/// Where the shapes differ it passes none, and that is said.
at::Tensor stand_in_for(const at::Tensor& old, const at::Tensor& value);

/// `value`, as it is to stand in the place of `old` (design 1.4): what a routine recorded keeps its graph; any other
/// value takes over the gradient edge of `old` where the program records. `value` itself is never changed.
at::Tensor in_place_of(const at::Tensor& old, const at::Tensor& value);

}  // namespace amanda::pytorch
