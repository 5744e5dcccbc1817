// Questions about tensors that every tool may have, in Python.
#include "torch_bindings.h"
#include "values/tensors.h"

namespace amanda::tools::pytorch {

void bind_tensors(pybind11::module_& m) {
  namespace py = pybind11;
  m.def(
      "output_bytes",
      [] {
        static const OutputBytes function = &output_bytes;
        return py::capsule(&function, kOutputBytesCapsule);
      },
      "For `_tools.ProfileRecorder`.");
  m.def("has_tangent", &has_tangent, py::arg("tensor"), py::call_guard<py::gil_scoped_release>(),
        "Does the tensor carry another one, of forward-mode differentiation? What it wraps is not asked.");
}

}  // namespace amanda::tools::pytorch
