// The number of operations of operators of TensorFlow that no word stands for, computed from shapes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flops/bilinear_operator.h"

namespace amanda::tools {

/// The operator with this name, if it has a formula.
std::optional<BilinearOperator> find_tensorflow_operator(const std::string& name);
/// Their names, with "tensorflow::".
std::vector<std::string> tensorflow_operators();
/// True if the operator computes nothing: it passes its input on, or only returns its shape.
bool is_tensorflow_view(const std::string& name);
/// True if the operator's name shows that it contains products: a convolution, a recurrent layer, a solver. For
/// operators without a formula.
bool may_multiply(const std::string& name);

}  // namespace amanda::tools
