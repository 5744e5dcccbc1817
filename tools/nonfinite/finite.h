// Tests whether every element of an operator's tensors is finite. Written to be cheap where all are.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "amanda/action.h"

namespace amanda::tools::pytorch {

/// True if a tensor that is_readable() has a NaN, or, with `inf`, an infinity. Integers have neither. Empty if its
/// dtype is not supported here.
std::optional<bool> has_nonfinite(const at::Tensor& tensor, bool inf);

/// The number of results that were read, and of those that had a tangent of forward-mode differentiation, which is not
/// read.
struct Reads {
  std::atomic<int64_t> results = 0, tangents = 0;
};

/// A routine before or after an operator, forward or backward. Returns true if all operands that it selects were read,
/// and are finite, and so are the inputs at the positions `written`: an operator that returns nothing has written to
/// them. `reads` counts its operands; if it is null, they do not count.
bool are_finite(Values& values, bool inf, const std::vector<size_t>& written, Reads* reads);

/// After AccumulateGrad: true if the leaf has no gradient, or one in the memory of the incoming gradient, and no hook
/// that may have changed it.
bool keeps_incoming(OpCall& call);

}  // namespace amanda::tools::pytorch
