// Describes Python objects that are operands of a graph.
#pragma once

#include <pybind11/pybind11.h>

#include "amanda/value.h"

namespace amanda::python {

/// Numbers and lists describe themselves. For other objects `describe(object)` returns a dict with the known properties
/// of a tensor: dtype, sizes (None if not known), device, bytes, requires_grad; or it returns None. `describe` may be
/// None. With the interpreter lock. Throws what `describe` raises, and TypeError if it returns something else.
ValueInfo info_of(pybind11::handle object, pybind11::handle describe);

}  // namespace amanda::python
