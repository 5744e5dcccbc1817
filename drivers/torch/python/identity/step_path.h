// The path of Steps of Python.
#pragma once

#include <pybind11/pybind11.h>

namespace amanda::python {

/// The modules that the steps run, innermost first.
pybind11::list modules_of(const pybind11::list& steps);

/// The path of Steps in Python: its text, its source, and whether it is in a model. The modules have names.
pybind11::tuple path_of(const pybind11::list& steps);

}  // namespace amanda::python
