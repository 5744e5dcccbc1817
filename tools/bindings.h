// The contents of amanda._tools: a function for each tool, in its folder.
#pragma once

#include <pybind11/pybind11.h>

namespace amanda::python {

void bind_counting(pybind11::module_& m);
void bind_flops(pybind11::module_& m);
void bind_profile(pybind11::module_& m);

}  // namespace amanda::python
