// The object that the routines of a Python tool share in one execution of an operator: an amanda.Run.
#pragma once

#include "module.h"

namespace amanda::python {

/// The tool's Run in this execution, a new reference.
PyObject* run_of(Values& values);

}  // namespace amanda::python
