// Shows Python the operators that a function calls while it is traced.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace amanda::python {

class TorchBridge;

/// Calls `function(*args, **kwargs)`. Before each outermost operator, calls `see(namespace, name, overload, inputs)`.
/// After the operator, calls the result of `see` with `(outputs, result_is_view)`, unless that result is None.
py::object record_calls(TorchBridge& bridge, const py::object& see, const py::object& function, const py::tuple& args,
                        const py::dict& kwargs);

}  // namespace amanda::python
