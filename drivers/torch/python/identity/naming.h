// The ids of operators at their places.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "amanda/driver/backend.h"
#include "base/python_hooks.h"
#include "python/identity/operand_names.h"
#include "python/identity/path.h"

namespace amanda::python {

struct Identified {
  OpId id = 0;
  std::string module_path, source;
};

/// Identifies an operator on a path; without the source. `modules`: the running modules, innermost first; they have
/// names. `traced`: Path::traced().
///
/// With the interpreter lock, inside call_path.naming(). Throws any exception that Python raises.
Identified identify(std::string_view path, const std::vector<PyObject*>& modules, const TracedModule& traced,
                    uint64_t name_hash, const std::vector<NamedOperand>& operands, bool recomputing);

/// An operator that this thread calls.
struct NamedCall {
  Identified place;
  bool in_model = false;  // the id does not depend on frames outside the outermost module
};
/// Identified by the kept steps of its frames and modules. Empty if something is not kept yet or has died, or if
/// another thread names a place. With the interpreter lock.
std::optional<NamedCall> identify_kept(uint64_t name_hash, const std::vector<pytorch::TensorOperand>& tensors,
                                       bool recomputing);
/// Identified in any case, from this frame (or None) outwards. Python is asked for what only it knows: the names of
/// models that are new, and the mark of a root.
NamedCall name_call(const pybind11::object& frame, uint64_t name_hash,
                    const std::vector<pytorch::TensorOperand>& tensors, bool recomputing);

}  // namespace amanda::python
