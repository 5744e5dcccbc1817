// Support of Python's garbage collector for bound classes.
#pragma once

#include <pybind11/pybind11.h>

namespace amanda::python {

/// For py::class_: `T::traverse(visit, arg)` visits the Python objects that it alone owns, `T::clear()` releases them.
template <class T>
pybind11::custom_type_setup collected() {
  return pybind11::custom_type_setup([](PyHeapTypeObject* heap_type) {
    PyTypeObject* type = &heap_type->ht_type;
    type->tp_flags |= Py_TPFLAGS_HAVE_GC;
    type->tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
      Py_VISIT(Py_TYPE(self));
      if (!pybind11::detail::is_holder_constructed(self)) return 0;
      return pybind11::cast<T&>(pybind11::handle(self)).traverse(visit, arg);
    };
    type->tp_clear = [](PyObject* self) {
      if (pybind11::detail::is_holder_constructed(self)) pybind11::cast<T&>(pybind11::handle(self)).clear();
      return 0;
    };
  });
}

}  // namespace amanda::python
