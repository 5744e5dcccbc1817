#include "python/errors.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <unwind.h>

#include <algorithm>
#include <vector>

#include "base/python_hooks.h"

namespace amanda::python {
namespace {

// Kept for the life of the process.
PyObject* is_programs_function = nullptr;
std::vector<uintptr_t> native_methods;  // sorted: the addresses of the C functions
std::vector<PyObject*> python_methods;  // code objects

constexpr const char* kOperators = "_amanda_operators_own";

// NOTE: [NotImplemented] In `a + b` PyTorch turns a TypeError into NotImplemented. Python then tries something else (`x
// in [y]`: false), or reports unsupported operand types: a tool's error would be lost. The caller of `a + b` is not
// visible in Python's frames: sum() and functools.reduce() call it from C. So the methods that behave like this are
// searched on the native stack, by the addresses of their functions.
bool calls_native_method() {
  struct Search {
    static _Unwind_Reason_Code visit(_Unwind_Context* context, void* found) {
      void* code = reinterpret_cast<void*>(_Unwind_GetIP(context) - 1);  // of the call, not the return address
      const auto begin = reinterpret_cast<uintptr_t>(_Unwind_FindEnclosingFunction(code));
      if (!std::binary_search(native_methods.begin(), native_methods.end(), begin)) return _URC_NO_REASON;
      *static_cast<bool*>(found) = true;
      return _URC_NORMAL_STOP;
    }
  };
  bool found = false;
  _Unwind_Backtrace(&Search::visit, &found);
  return found;
}

bool calls_python_method() {
  bool found = false;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame && !found) {
    PyObject* code = reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
    found = std::find(python_methods.begin(), python_methods.end(), code) != python_methods.end();
    Py_DECREF(code);
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  return found;
}

bool is_programs(py::handle exception) {
  try {
    return is_programs_function && py::handle(is_programs_function)(exception).cast<bool>();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("amanda.drivers.torch.program_errors");
    return false;
  }
}

bool carries_programs(const std::exception_ptr& error) {
  if (!Py_IsInitialized()) return false;
  py::gil_scoped_acquire gil;
  PyObject* exception = carried_exception(error);
  return exception && is_programs(py::reinterpret_steal<py::object>(exception));
}

/// Returns true if the exception was marked. Removes the mark.
bool take_mark(py::handle exception) {
  if (!py::hasattr(exception, kOperators)) return false;
  py::delattr(exception, kOperators);
  return true;
}

}  // namespace

void install_errors(PyObject* is_programs, PyObject* methods) {
  is_programs_function = Py_NewRef(is_programs);
  for (py::handle method : py::reinterpret_borrow<py::iterable>(methods)) {
    if (PyCode_Check(method.ptr())) {
      python_methods.push_back(method.inc_ref().ptr());
    } else if (Py_IS_TYPE(method.ptr(), &PyMethodDescr_Type)) {
      const auto* descriptor = reinterpret_cast<PyMethodDescrObject*>(method.ptr());
      native_methods.push_back(reinterpret_cast<uintptr_t>(descriptor->d_method->ml_meth));
    }
  }
  std::sort(native_methods.begin(), native_methods.end());
  pytorch::python_hooks.is_programs = &carries_programs;
}

PyObject* carried_exception(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const python_error& e) {
    PyObject *type = Py_XNewRef(e.type), *value = Py_XNewRef(e.value), *traceback = Py_XNewRef(e.traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value && traceback) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
  } catch (...) {
    return nullptr;
  }
}

void mark_as_operators() {
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) return;
  py::error_already_set error;  // takes it
  if (PyObject_SetAttrString(error.value().ptr(), kOperators, Py_True) != 0) PyErr_Clear();
  error.restore();
}

void keep_type_error() {
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) return;
  py::error_already_set error;  // takes it
  PyException_SetTraceback(error.value().ptr(), error.trace() ? error.trace().ptr() : Py_None);
  if (take_mark(error.value()) || is_programs(error.value()) || !(calls_native_method() || calls_python_method())) {
    return error.restore();
  }
  const std::string text = "TypeError: " + py::str(error.value()).cast<std::string>();
  py::raise_from(error, PyExc_RuntimeError, text.c_str());
  py::error_already_set raised;
  raised.value().attr("__notes__") = error.value().attr("__notes__");  // the notes that _core added
  raised.restore();
}

}  // namespace amanda::python
