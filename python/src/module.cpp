// amanda._core: the core in Python. Knows no framework.
#include "module.h"

#include <fmt/format.h>

#include <vector>

#include "foreign_thread.h"

namespace amanda::python {
namespace {

struct Known {
  const Backend* backend;
  PythonBridge* bridge;
};
/// With the interpreter lock. One or two: a search is faster than a map's, for each routine.
std::vector<Known>& bridges = *new std::vector<Known>;

py::object lenient(const std::string& text) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

void* leave_interpreter() { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; }
void enter_interpreter(void* thread) {
  if (thread) PyEval_RestoreThread(static_cast<PyThreadState*>(thread));
}

}  // namespace

void register_bridge(const Backend& backend, PythonBridge& bridge) {
  for (Known& known : bridges) {
    if (known.backend == &backend) {
      known.bridge = &bridge;
      return;
    }
  }
  bridges.push_back({&backend, &bridge});
}

[[gnu::hot]] PythonBridge& bridge_of(const Backend& backend) {
  for (const Known& known : bridges) {
    if (known.backend == &backend) return *known.bridge;
  }
  throw Error(fmt::format("[python] there is no Python bridge for '{}'; import its driver", backend.name_space()));
}

py::object python_exception(const std::exception_ptr& error) {
  if (!error) return py::none();
  for (const auto& [backend, bridge] : bridges) {
    if (PyObject* carried = bridge->python_exception(error)) return py::reinterpret_steal<py::object>(carried);
  }
  try {
    std::rethrow_exception(error);
  } catch (const py::error_already_set& e) {
    return e.value();
  } catch (const std::exception& e) {
    return py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(e.what());
  } catch (...) {
    return py::reinterpret_borrow<py::object>(PyExc_RuntimeError)("an exception that is no std::exception");
  }
}

std::string text_of(py::handle text) {
  const auto bytes =
      py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes) throw py::error_already_set();
  return bytes;
}

void add_note(const std::string& note) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (value) {
    const py::object text = lenient(note);
    PyObject* done = PyObject_CallMethod(value, "add_note", "O", text.ptr());
    if (!done) PyErr_Clear();
    Py_XDECREF(done);
  }
  PyErr_Restore(type, value, traceback);
}

bool is_failure(const std::exception_ptr& error) {
  py::gil_scoped_acquire gil;
  return PyObject_IsInstance(python_exception(error).ptr(), PyExc_Exception) != 0;
}

}  // namespace amanda::python

PYBIND11_MODULE(_core, m) {
  using namespace amanda;
  using namespace amanda::python;
  m.doc() = "The core of Amanda: tools, contexts, actions, scopes. Use it through the package `amanda`.";
  py::register_exception<Error>(m, "Error", PyExc_RuntimeError).doc() =
      "Raised by Amanda for misuse and failures it detects. Exceptions of a tool's own routines are never wrapped in "
      "it.";
  bind_tool(m);
  bind_action(m);
  bind_value_info(m);
  bind_op_context(m);
  bind_run(m);
  bind_scope(m);
  bind_toolset(m);
  bind_graph_backend(m);
  bind_graph_site(m);
  bind_tap(m);
  bind_artifact(m);
  bind_code_position(m);
  m.def(
      "register_bridge",
      [](py::capsule capsule) {
        const auto& made = *static_cast<BridgeCapsule*>(PyCapsule_GetPointer(capsule.ptr(), kBridgeCapsule));
        register_bridge(*made.backend, *made.bridge);
      },
      py::arg("capsule"), "Makes a driver's operands known to Python; drivers call it.");
  m.def(
      "set_log_sink",
      [](py::object sink) {
        auto held = std::make_shared<PyRef>(sink.release().ptr());
        set_log_sink([held](const std::string& line) {
          if (!Py_IsInitialized()) return;
          py::gil_scoped_acquire gil;
          const py::error_scope raised;  // some lines are logged while an error propagates
          try {                          // lines are also logged where nothing may be thrown
            py::handle(held->get())(lenient(line));
          } catch (py::error_already_set& error) {
            error.discard_as_unraisable("amanda: the log");
          }
        });
      },
      py::arg("sink"), "Calls `sink(line)` for each warning.");
  m.def("drain_released", &drain_released, "Lets go of objects that were dropped without the interpreter lock.");
  py::module_::import("atexit").attr("register")(py::cpp_function(&refuse_routines_of_others));
  set_wait_hooks({&leave_interpreter, &enter_interpreter});
  m.attr("__version__") = AMANDA_VERSION;
}
