// The operators of the runtime: a table that programs may add to.
#pragma once

#include <functional>
#include <string_view>

#include "amanda/backend.h"
#include "amanda/reference/operand.h"

namespace amanda::reference {

struct Operator {
  OpInfo info;
  std::function<Operands(const Operands& inputs)> kernel;  // a composite's calls others, through call()
  bool in_place = false;                                   // changes its first input, and returns it
  bool view = false;                                       // its result shares its first input's data
  OpType type = 0;                                         // its index in the table
};

/// "add", or "mul.scalar" for an overload. Throws `std::invalid_argument` for a name that is not there.
const Operator& find_operator(std::string_view name);
const Operator& operator_of(OpType type);

/// Adds an operator, for the rest of the process; its type is filled in here.
const Operator& define(Operator op);

}  // namespace amanda::reference
