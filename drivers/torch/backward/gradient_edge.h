// Values that replace others, and the gradient edges that they take over.
#pragma once

#include <ATen/core/Tensor.h>

namespace amanda::pytorch {

/// A new handle on `value` that passes gradients and tangents unchanged to `old`, if the program records. If the shapes
/// differ it passes none.
at::Tensor stand_in_for(const at::Tensor& old, const at::Tensor& value);

/// `value` in the form that replaces `old`: if a routine recorded it, it keeps its graph; otherwise it takes over the
/// gradient edge of `old`, if the program records. `value` itself is never changed.
at::Tensor in_place_of(const at::Tensor& old, const at::Tensor& value);

/// True if in_place_of() returns a tensor that passes no gradient to `old`, although the program records it: the shapes
/// differ.
bool stops_gradient(const at::Tensor& old, const at::Tensor& value);

}  // namespace amanda::pytorch
