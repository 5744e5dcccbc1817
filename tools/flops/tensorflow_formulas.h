// The number of operations of an operator of TensorFlow, computed from shapes.
//
// Each of them is linear in two operands, as products and convolutions are. A gradient of such an operator takes as
// many operations as the operator itself. This also holds for a filter's gradient with groups, where PyTorch's
// convention is another: see convolution_backward_flops().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
  std::optional<int64_t> (*flops)(const BilinearShapes& shapes, const std::string& equation);
  int64_t a, b;  ///< positions; equal ones: the first two members of a list
};

/// The operator with this name. Null if it has no formula.
const BilinearOperator* find_tensorflow_operator(const std::string& name);
/// Their names, with "tensorflow::".
std::vector<std::string> tensorflow_operators();
/// True if the operator computes nothing: it passes its input on, or only returns its shape.
bool is_tensorflow_view(const std::string& name);
/// True if the operator's name shows that it contains products: a convolution, a recurrent layer, a solver. For
/// operators without a formula.
bool may_multiply(const std::string& name);

}  // namespace amanda::tools
