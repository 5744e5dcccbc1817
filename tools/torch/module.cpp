// amanda._torch_tools: the work of tools in Python with PyTorch's tensors that is done in C++.
#include "torch/bindings.h"
#include "torch/tensors.h"

PYBIND11_MODULE(_torch_tools, m) {
  namespace py = pybind11;
  using namespace amanda::tools;
  m.doc() = "What tools do with PyTorch's tensors. Use it through `amanda.tools`.";
  m.def(
      "output_bytes",
      [] {
        static const OutputBytes function = &pytorch::output_bytes;
        return py::capsule(&function, kOutputBytesCapsule);
      },
      "For `_tools.ProfileRecorder`.");
  m.def("has_tangent", &pytorch::has_tangent, py::arg("tensor"), py::call_guard<py::gil_scoped_release>(),
        "Does the tensor carry another one, of forward-mode differentiation? What it wraps is not asked.");
  pytorch::bind_finite(m);
  pytorch::bind_unwritten(m);  // before those that are given one
  pytorch::bind_statistics(m);
  pytorch::bind_gradients(m);
  pytorch::bind_memory(m);
  pytorch::bind_storages(m);
  pytorch::bind_fake_quantization(m);
  pytorch::bind_collectives(m);
}
