// The part of amanda._torch that names places, models and parameters.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace amanda::python {

void bind_identity(py::module_& m);

}  // namespace amanda::python
