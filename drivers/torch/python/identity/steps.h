// The steps of a call path, which are kept by the instructions that frames are at.
#pragma once

#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "python/identity/path.h"
#include "python/identity/spot.h"

namespace amanda::python {

/// The Python objects for making steps, for the life of the process.
struct StepPython {
  pybind11::object run_module;          // the code whose first local is the module that runs
  pybind11::object step;                // the class of steps, a tuple of (spot, module or None, mark, enters a scope)
  pybind11::dict names;                 // of known modules, by address
  pybind11::function unwrapped;         // the module that counts as running where an unknown one is called, or None
  pybind11::function is_resumed;        // true if the code is a part of a function; no step of such code is kept
  pybind11::function mark_of_function;  // see amanda/identity/roots.py
};
void install_steps(StepPython functions);
/// Two lists, or None if a step cannot be kept. The first has the steps of `frame` (or None) and its callers, innermost
/// first. The second has (index, frame) of the frames at one of `addresses`, whose steps depend on more than the
/// instruction and the module.
pybind11::object steps_from(pybind11::object frame, const std::vector<uintptr_t>& addresses);
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
