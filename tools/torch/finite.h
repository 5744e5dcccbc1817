// Is every element of an operator's tensors finite? Written to be cheap where the answer is yes.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "amanda/action.h"

namespace amanda::tools::pytorch {

/// Has a tensor that is_readable() a NaN, or with `inf` an infinity, too? No integer has. None: its dtype is not one of
/// those here.
std::optional<bool> has_nonfinite(const at::Tensor& tensor, bool inf);

/// How many results were read; and how many had a tangent of forward-mode differentiation, which nobody reads.
struct Reads {
  std::atomic<int64_t> results = 0, tangents = 0;
};

/// A routine before or after an operator, forward or backward. True: all operands that it selects were read, and are
/// finite, and so are the inputs at the positions `written`: an operator that returns nothing has written to them.
/// `reads`: counts its operands; null: they do not count.
bool are_finite(Values& values, bool inf, const std::vector<size_t>& written, Reads* reads);

}  // namespace amanda::tools::pytorch
