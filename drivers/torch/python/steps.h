// The steps of a call path, which are kept by the instructions that frames are at.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

namespace amanda::python {

/// A list of the steps of `frame` (or None) and its callers, innermost first, and a list of (index, frame, module) of
/// those whose steps depend on more than the instruction: the frame, if it is at one of `addresses`, and the first local
/// of one that runs `run_module`; None otherwise.
///
/// `make(frame)` makes a step that is not kept yet. If it returns None, no step of that code can be kept, and the
/// result is None.
pybind11::object steps_from(pybind11::object frame, const pybind11::object& make, pybind11::handle run_module,
                            const std::vector<uintptr_t>& addresses);
/// Of a kept step; see Spot in amanda/drivers/torch/call_path.py.
struct StepFacts {
  std::string source;  // the line; empty: in torch or Amanda
  bool is_checkpoint, lends;
};
/// The facts of the step that is kept for frames of this code at this instruction; null: none is. With the interpreter
/// lock. What is kept for code that has died is wrong until forget_steps() is called.
const StepFacts* find_step(PyCodeObject* code, int offset, PyObject* globals);
/// The code object at this address has died.
void forget_steps(uintptr_t code);

}  // namespace amanda::python
