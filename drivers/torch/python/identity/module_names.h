// The names that modules have in paths.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

#include "python/identity/text.h"

namespace amanda::python {

/// A Name of amanda/drivers/torch/identity/models.py.
class ModuleName {
 public:
  /// `names`: of modules, by address. False as a bool: it has none.
  static ModuleName of(PyObject* module, const pybind11::dict& names) {
    const auto address = pybind11::reinterpret_steal<pybind11::object>(PyLong_FromVoidPtr(module));
    return ModuleName(PyDict_GetItemWithError(names.ptr(), address.ptr()));
  }
  /// `fields`: of a NamedTuple, borrowed; null if there is no name.
  explicit ModuleName(PyObject* fields) : fields_(fields) {}
  explicit operator bool() const { return fields_ != nullptr; }
  pybind11::handle model() const { return PyTuple_GET_ITEM(fields_, 0); }
  pybind11::handle path() const { return PyTuple_GET_ITEM(fields_, 1); }  // in the model
  bool has_state() const { return PyTuple_GET_ITEM(fields_, 2) == Py_True; }
  std::string_view text() const { return view(PyTuple_GET_ITEM(fields_, 3)); }  // of the model and the path
  pybind11::object object() const {
    return pybind11::reinterpret_borrow<pybind11::object>(fields_ ? fields_ : Py_None);
  }

 private:
  PyObject* fields_;
};

}  // namespace amanda::python
