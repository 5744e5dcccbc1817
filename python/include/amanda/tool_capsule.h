// Hands a C++ tool to Python: for extension modules written with pybind11.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "amanda/tool.h"

namespace amanda::python {

/// The name of a capsule that holds an `amanda::Tool*`. A module written without pybind11 makes such a capsule itself,
/// with a destructor that deletes the tool.
inline constexpr const char* kToolCapsule = "amanda.tool";

/// A capsule for `amanda.tool.NativeTool(capsule)`. Call it with the interpreter lock. Throws
/// `pybind11::error_already_set` if there is no memory; the tool is deleted then.
///
/// The capsule owns the tool. NativeTool takes the tool out of it, once: from then on the NativeTool owns the tool, and
/// the capsule is empty. The NativeTool and open scopes with it keep the tool alive; the tool is deleted with the
/// interpreter lock, on the thread that drops the last of them. For objects that the module needs after that, such as
/// the tool's results, tool and module must both hold a `std::shared_ptr`.
inline pybind11::capsule capsule_of(std::unique_ptr<Tool> tool) {
  PyObject* capsule = PyCapsule_New(tool.get(), kToolCapsule, [](PyObject* unused) {
    delete static_cast<Tool*>(PyCapsule_GetPointer(unused, kToolCapsule));
  });
  if (!capsule) throw pybind11::error_already_set();
  static_cast<void>(tool.release());
  return pybind11::reinterpret_steal<pybind11::capsule>(capsule);
}

}  // namespace amanda::python
