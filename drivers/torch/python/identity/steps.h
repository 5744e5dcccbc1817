// The steps of a call path, which are kept by the instructions that frames are at.
#pragma once

#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "python/identity/path.h"
#include "python/identity/spot.h"

namespace amanda::python {

/// The steps of `frame` (or None) and its callers, innermost first.
pybind11::list steps_from(pybind11::object frame);
/// The step that all frames at some instruction of some code in a Python module have in common.
struct LastingStep {
  std::shared_ptr<Spot> spot;
  pybind11::object mark;          // a roots.Mark, or None
  mutable pybind11::object step;  // for Python; null if it was not asked for

  PathStep part() const;  // without a module
};
/// The step that is kept for frames of this code at this instruction. Null if none is kept. With the interpreter lock.
/// The step of code that has died is wrong until forget_steps() is called.
const LastingStep* find_step(PyCodeObject* code, int offset, PyObject* globals);
/// A frame whose step is kept.
struct KeptStep {
  const LastingStep* known;
  PyObject* code;    // of the frame
  PyObject* module;  // whose call it runs; null if it runs none
  PyObject* frame;   // null if it has no frame object
};
/// True if this thread runs a module's call.
bool runs_module();
/// The steps of this thread's frames, innermost first, valid as long as no Python code runs. Empty if a step is not
/// kept yet, or if the interpreter's own frames cannot be read.
c10::SmallVector<KeptStep, 64> kept_steps();
/// Makes the steps that kept_steps() needs, with their texts; runs Python code. Returns false if one cannot be kept, or
/// if the interpreter's own frames cannot be read.
bool keep_steps();
/// The number of steps that were made, rather than found.
size_t count_steps();
/// The code object at this address has died.
void forget_steps(uintptr_t code);

}  // namespace amanda::python
