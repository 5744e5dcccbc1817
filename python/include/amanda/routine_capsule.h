// Hands a C++ routine to a tool in Python: for extension modules written with pybind11.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "amanda/action.h"

namespace amanda::python {

/// A routine that runs without the interpreter lock, and only reads, unless it is scheduled with `edits`. Returns false
/// if it has done nothing; the routine in Python then does the work.
using NativeRoutine = std::function<bool(Values&)>;

/// The name of a capsule that holds a NativeRoutine.
inline constexpr const char* kRoutineCapsule = "amanda.routine";

/// A capsule for `_core.NativeRoutine(capsule, otherwise, edits=False)`, which copies the routine. The routine must
/// hold the objects that it works on by a `std::shared_ptr`. It must hold no Python object, because the garbage
/// collector would not find it. Call this function with the interpreter lock. Throws `pybind11::error_already_set` if
/// there is no memory.
inline pybind11::capsule capsule_of(NativeRoutine routine) {
  auto held = std::make_unique<NativeRoutine>(std::move(routine));
  PyObject* capsule = PyCapsule_New(held.get(), kRoutineCapsule, [](PyObject* unused) {
    delete static_cast<NativeRoutine*>(PyCapsule_GetPointer(unused, kRoutineCapsule));
  });
  if (!capsule) throw pybind11::error_already_set();
  static_cast<void>(held.release());
  return pybind11::reinterpret_steal<pybind11::capsule>(capsule);
}
/// The same, for a routine that always does its work and returns nothing.
template <class Fn>
requires std::is_void_v<std::invoke_result_t<Fn&, Values&>> pybind11::capsule capsule_of(Fn routine) {
  return capsule_of(NativeRoutine([routine = std::move(routine)](Values& values) {
    routine(values);
    return true;
  }));
}

}  // namespace amanda::python
