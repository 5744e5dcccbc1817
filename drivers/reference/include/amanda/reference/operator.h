// The operators of the runtime: a table that programs may add to.
#pragma once

#include <functional>
#include <string_view>

#include "amanda/backend.h"
#include "amanda/reference/operand.h"

namespace amanda::reference {

/// From the gradients of the results to those of the inputs: one for each array among them, lists laid out.
using GradientRule = std::function<Gradients(const Gradients& grad_outputs)>;

struct Operator {
  OpInfo info;
  std::function<Operands(const Operands& inputs)> kernel;  // a composite's calls others, through call()
  bool in_place = false;                                   // changes its first input, and returns it
  bool view = false;                                       // its result shares its first input's data
  /// Called after the kernel, where gradients are recorded. The rule keeps what it needs as copies of its own, and runs
  /// only if some gradient comes in. Without one, gradients flow through the operators that the kernel calls.
  std::function<GradientRule(const Operands& inputs, const Operands& results)> differentiate = nullptr;
  OpType type = 0;           // its index in the table
  OpType gradient_type = 0;  // of its nodes on the tape, if it has a rule: "MulBackward"
};

/// "add", or "mul.scalar" for an overload. Throws `std::invalid_argument` for a name that is not there.
const Operator& find_operator(std::string_view name);
const Operator& operator_of(OpType type);
OpType accumulate_type();  // of the node that stands for a leaf: "AccumulateGrad"

/// Adds an operator, for the rest of the process; its types are filled in here.
const Operator& define(Operator op);

}  // namespace amanda::reference
