// An operator that is linear in two operands, as products and convolutions are.
//
// A gradient of such an operator takes as many operations as the operator itself. This also holds for a filter's
// gradient with groups, where PyTorch's convention is another: see convolution_backward_flops().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "amanda/value.h"

namespace amanda::tools {

/// The sizes of the operands of one run. Empty if they are not known; an element may be kUnknown.
struct BilinearShapes {
  std::optional<IntVector> a{}, b{}, output{};

  bool operator==(const BilinearShapes&) const = default;
};

/// A type of operator that has a formula.
struct BilinearOperator {
  /// `equation`: that of an Einsum. The result is empty if the formula does not cover these shapes, or needs more of
  /// them.
  std::function<std::optional<int64_t>(const BilinearShapes& shapes, const std::string& equation)> flops;
  int64_t a, b;  ///< positions; equal ones: the first two members of a list
};

}  // namespace amanda::tools
