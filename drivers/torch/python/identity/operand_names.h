// The names of the parameters and buffers that operators use, as parts of ids.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "python/identity/model_names.h"

namespace amanda::python {

/// A tensor among an operator's operands that its id may depend on.
struct NamedOperand {
  size_t position;
  PyObject* object;  // null if it has none, because C++ created and holds it
  bool counts;       // true if it is a parameter, or a leaf that requires a gradient
};

/// An operand's name at a place, as Python shows it. Empty if it is not part of the id there.
///
/// A buffer of a known model has its name in the model. A parameter has its name in one of the running `modules`, tried
/// from the innermost outwards; `names` are theirs. Elsewhere (loops of an optimizer, weights outside modules)
/// parameters are numbered in the order in which they first occur at the place.
///
/// With the interpreter lock, and one thread at a time. Throws any exception that Python raises. `recomputing`: true in
/// a checkpointed region that is recomputed.
std::string operand_name(const NamedOperand& operand, const std::vector<PyObject*>& modules, const ModuleNames& names,
                         uint64_t place, bool recomputing);

/// A parameter that no module of the place holds has a new number, so that the places that use it are named again.
void renumber_loose(const at::Tensor& tensor);
/// The tensor with this number has died.
void forget_loose(uint64_t number);

}  // namespace amanda::python
