// The steps of a call path, which are kept by the instructions that frames are at.
#pragma once

#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "python/path.h"

namespace amanda::python {

/// What steps are made with, for the life of the process.
///
/// Arguments: make(code, offset, name of the Python module or None): makes a step that is not kept yet, without its
/// module; None: no step of that code can be kept. run_module: the code whose first local is the module that runs.
/// step: the class of steps, a tuple of (spot, module or None, mark, does it enter a scope). names: of known modules,
/// by address. unwrapped: the module that counts as running where an unknown one is called, or None.
void install_steps(pybind11::object make, const pybind11::object& run_module, const pybind11::object& step,
                   pybind11::dict names, pybind11::object unwrapped);
/// A list of the steps of `frame` (or None) and its callers, innermost first, and a list of (index, frame) of those at
/// one of `addresses`, whose steps depend on more than the instruction and the module. None if a step cannot be kept.
pybind11::object steps_from(pybind11::object frame, const std::vector<uintptr_t>& addresses);
/// Of a kept step; see Spot in amanda/drivers/torch/call_path.py.
struct StepFacts {
  pybind11::object spot;
  mutable PathStep part;  // without a module
  bool lends;

  /// With the text of its place; empty if it was no part of a path yet.
  const PathStep& with_text() const;
};
/// The facts of the step that is kept for frames of this code at this instruction; null: none is. With the interpreter
/// lock. What is kept for code that has died is wrong until forget_steps() is called.
const StepFacts* find_step(PyCodeObject* code, int offset, PyObject* globals);
/// A frame whose step is kept.
struct KeptStep {
  const StepFacts* facts;
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
/// The code object at this address has died.
void forget_steps(uintptr_t code);

}  // namespace amanda::python
