// The path of Steps of Python.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "python/identity/model_names.h"
#include "python/identity/path.h"

namespace amanda::python {

/// The modules that the steps run, innermost first.
std::vector<PyObject*> modules_in(const pybind11::list& steps);  // borrowed
pybind11::list modules_of(const pybind11::list& steps);
/// True if a step calls a module with other tensors than its own.
bool any_lends(const pybind11::list& steps);

/// The path, which must not outlive the steps. `names`: of the modules.
Path path_of(const pybind11::list& steps, const ModuleNames& names);
/// For Python: its text, source and TracedModule, and whether it is in a model. The modules have names.
pybind11::tuple path_of(const pybind11::list& steps);

}  // namespace amanda::python
