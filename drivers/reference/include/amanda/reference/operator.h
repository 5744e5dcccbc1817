// The operators of the runtime: a table that programs may add to.
#pragma once

#include <functional>
#include <string_view>

#include "amanda/driver/backend.h"
#include "amanda/reference/operand.h"

namespace amanda::reference {

/// From the gradients of the results to those of the inputs: one for each array among them, also for those in lists.
using GradientRule = std::function<Gradients(const Gradients& grad_outputs)>;

/// An operator of the runtime.
struct Operator {
  OpInfo info;  ///< its name, and those of its operands
  std::function<Operands(const Operands& inputs)>
      kernel;             ///< computes the results; a composite's kernel calls others, through call()
  bool in_place = false;  ///< changes its first input, and returns it
  bool view = false;      ///< its result shares its first input's data
  /// Called after the kernel, if gradients are recorded. The rule keeps its own copies of what it needs, and runs only
  /// if a gradient arrives. Without one, gradients flow through the operators that the kernel calls.
  std::function<GradientRule(const Operands& inputs, const Operands& results)> differentiate = nullptr;
  OpType type = 0;           ///< its index in the table
  OpType gradient_type = 0;  ///< of its nodes on the tape, if it has a rule: "MulBackward"
};

/// The operator with this name: "add", or "mul.scalar" for an overload. Throws `std::invalid_argument` for an unknown
/// name.
const Operator& find_operator(std::string_view name);
/// The operator of this type, which must exist.
const Operator& operator_of(OpType type);
OpType accumulate_type();  ///< of a leaf's node: "AccumulateGrad"

/// Adds an operator, for the rest of the process, and fills in its types. On any thread.
const Operator& define(Operator op);

}  // namespace amanda::reference
