// amanda._torch: the PyTorch driver in Python. Importing it attaches the driver.
#include <torch/csrc/Exceptions.h>

#include "amanda/error.h"
#include "amanda/torch.h"
#include "bridge.h"
#include "call_path.h"
#include "keys.h"
#include "python_hooks.h"

namespace {

PyObject* error_class = nullptr;  // amanda.Error

// In a handler of amanda::Error, on its way to PyTorch's Python bindings: they know only Python's errors.
void rethrow_as_python() {
  if (!Py_IsInitialized()) return;
  try {
    throw;
  } catch (const amanda::Error& e) {
    py::gil_scoped_acquire gil;
    PyErr_SetString(error_class, e.what());
    python_error error;
    error.persist();
    throw error;
  }
}

}  // namespace

PYBIND11_MODULE(_torch, m) {
  using namespace amanda;
  m.doc() = "The PyTorch driver. Use it through the package `amanda`.";
  static python::TorchBridge bridge;
  static python::BridgeCapsule capsule{&pytorch::backend(), &bridge};
  m.def(
      "install",
      [](const py::object& error, const py::object& describe, const py::object& recomputing, const py::object& engine,
         const py::object& run_module, const py::object& parameter) {
        error_class = Py_NewRef(error.ptr());
        pytorch::python_hooks.rethrow = &rethrow_as_python;
        python::install_call_path(describe.ptr(), recomputing.ptr(), engine.ptr(), run_module.ptr(), parameter.ptr());
      },
      py::arg("error"), py::arg("describe"), py::arg("recomputing"), py::arg("engine"), py::arg("run_module"),
      py::arg("parameter"), "Connects the driver with Python; called once, by the package.");
  m.def(
      "bridge", [] { return py::capsule(&capsule, python::kBridgeCapsule); }, "For amanda._core.register_bridge.");
  m.def(
      "dispatch_keys",
      [] { return py::make_tuple(c10::toString(pytorch::keys().filter), c10::toString(pytorch::keys().all)); },
      "The names of the dispatch keys in use: filter, all.");
  m.def(
      "restore_keys", [] { pytorch::thread_keys().restore(); }, "Puts this thread's dispatch keys right again.");
  m.def("walks_frames_directly", &python::walks_frames_directly);
}
