// Passes a C++ tool to Python.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "amanda/tool.h"
#include "native_tool.h"

namespace amanda::python {

/// A capsule for amanda.tool.NativeTool. It owns the tool until that takes ownership. With the interpreter lock; throws
/// the Python error if there is no memory.
inline pybind11::capsule capsule_of(std::unique_ptr<Tool> tool) {
  PyObject* capsule = PyCapsule_New(tool.get(), kToolCapsule, [](PyObject* unused) {
    delete static_cast<Tool*>(PyCapsule_GetPointer(unused, kToolCapsule));
  });
  if (!capsule) throw pybind11::error_already_set();
  static_cast<void>(tool.release());
  return pybind11::reinterpret_steal<pybind11::capsule>(capsule);
}

}  // namespace amanda::python
