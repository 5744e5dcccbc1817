// The gradient rules of the runtime's operators: each is created by a function with the operator's name.
#pragma once

#include "amanda/reference/operator.h"

namespace amanda::reference::derivative_of {

GradientRule add(const Operands& inputs, const Operands& results);
GradientRule sub(const Operands& inputs, const Operands& results);
GradientRule mul(const Operands& inputs, const Operands& results);
GradientRule mul_scalar(const Operands& inputs, const Operands& results);
GradientRule neg(const Operands& inputs, const Operands& results);
GradientRule relu(const Operands& inputs, const Operands& results);
GradientRule sum(const Operands& inputs, const Operands& results);
GradientRule matmul(const Operands& inputs, const Operands& results);
GradientRule concat(const Operands& inputs, const Operands& results);
GradientRule split(const Operands& inputs, const Operands& results);
GradientRule flatten(const Operands& inputs, const Operands& results);

}  // namespace amanda::reference::derivative_of
