// The steps of a call path, which are kept by the instructions that frames are at.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace amanda::python {

/// A list of the steps of `frame` (or None) and its callers, innermost first, and a list of (index, frame) of those
/// that run `run_module` or are at one of `addresses`: their steps depend on more than the instruction.
///
/// `make(frame)` makes a step that is not kept yet. If it returns None, no step of that code can be kept, and the
/// result is None.
pybind11::object steps_from(pybind11::object frame, const pybind11::object& make, pybind11::handle run_module,
                            const std::vector<uintptr_t>& addresses);
/// The code object at this address has died.
void forget_steps(uintptr_t code);

}  // namespace amanda::python
