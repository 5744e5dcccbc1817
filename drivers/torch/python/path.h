// The steps of a call, as the path that its operator's id is made of.
#pragma once

#include <pybind11/pybind11.h>

namespace amanda::python {

/// The modules that the steps run, innermost first.
pybind11::list modules_of(const pybind11::list& steps);

/// The places of the steps up to the root, the first line outside torch and Amanda, and whether steps outside the
/// outermost module do not change the places. See path_of in amanda/drivers/torch/call_path.py, which also names the
/// modules first. `names`: of modules, by address.
pybind11::tuple path_of(const pybind11::list& steps, const pybind11::dict& names);

}  // namespace amanda::python
