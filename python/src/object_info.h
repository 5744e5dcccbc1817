// What a Python object is as an operand of a graph.
#pragma once

#include <pybind11/pybind11.h>

#include "amanda/value.h"

namespace amanda::python {

/// Numbers and lists describe themselves. For all else `describe(object)` gives a dict with what is known of a tensor:
/// dtype, sizes (None: not known), device, bytes, requires_grad; or None. `describe` may be None.
/// With the interpreter lock. Throws what `describe` raises, and TypeError if it gives something else.
ValueInfo info_of(pybind11::handle object, pybind11::handle describe);

}  // namespace amanda::python
