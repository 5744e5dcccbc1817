// The steps of a call path, which are kept by the instructions that frames are at.
#pragma once

#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "python/path.h"
#include "python/spot.h"

namespace amanda::python {

/// What steps are made with, for the life of the process.
struct StepPython {
  pybind11::object run_module;    // the code whose first local is the module that runs
  pybind11::object step;          // the class of steps, a tuple of (spot, module or None, mark, does it enter a scope)
  pybind11::dict names;           // of known modules, by address
  pybind11::function unwrapped;   // the module that counts as running where an unknown one is called, or None
  pybind11::function is_resumed;  // is the code a part of a function? No step of such code is kept
  pybind11::function mark_of_function;  // see amanda/identity/roots.py
};
void install_steps(StepPython functions);
/// A list of the steps of `frame` (or None) and its callers, innermost first, and a list of (index, frame) of those at
/// one of `addresses`, whose steps depend on more than the instruction and the module. None if a step cannot be kept.
pybind11::object steps_from(pybind11::object frame, const std::vector<uintptr_t>& addresses);
/// What each frame has that is at some instruction of some code in a Python module.
struct LastingStep {
  std::shared_ptr<Spot> spot;
  pybind11::object mark;          // a roots.Mark, or None
  mutable pybind11::object step;  // for Python; null: it was not asked for

  PathStep part() const;  // without a module
};
/// The step that is kept for frames of this code at this instruction; null: none is. With the interpreter lock. What is
/// kept for code that has died is wrong until forget_steps() is called.
const LastingStep* find_step(PyCodeObject* code, int offset, PyObject* globals);
/// A frame whose step is kept.
struct KeptStep {
  const LastingStep* known;
  PyObject* code;    // of the frame
  PyObject* module;  // whose call it runs; null: it runs none
  PyObject* frame;   // null: it has no frame object
};
/// Does this thread run a module's call?
bool runs_module();
/// Of this thread's frames, innermost first, as long as no Python code runs. Empty: a step is not kept yet, or the
/// interpreter's own frames do not tell.
c10::SmallVector<KeptStep, 64> kept_steps();
/// Makes the steps that kept_steps() needs, with their texts; runs Python code. False: one cannot be kept, or the
/// interpreter's own frames do not tell.
bool keep_steps();
/// How many were made, rather than found.
size_t count_steps();
/// The code object at this address has died.
void forget_steps(uintptr_t code);

}  // namespace amanda::python
