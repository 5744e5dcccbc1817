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

namespace amanda::python {

struct Identified {
  OpId id = 0;
  std::string module_path, source;
};

/// Installs the objects for naming places, for the life of the process. See amanda/drivers/torch/identity/call_path.py.
///
/// `registered` holds the modules whose buffers count, too, by address. `lock` is that of call_path.naming(). `entered`
/// holds the frames of this thread that entered a scope, by address, with their code. `blocks` holds the frames that
/// are in a block of amanda.root. `hash` is frames.hash_bytes().
void install_naming(pybind11::dict registered, pybind11::object lock, pybind11::object entered, pybind11::object blocks,
                    pybind11::object hash);

/// Identifies an operator on a path; without the source. `modules`: the running modules, innermost first; they have
/// names.
///
/// With the interpreter lock, inside call_path.naming(). Throws any exception that Python raises.
Identified identify(std::string_view path, const std::vector<PyObject*>& modules, uint64_t name_hash,
                    const std::vector<NamedOperand>& operands, bool recomputing);

/// An operator that this thread calls, identified by the kept steps of its frames and modules.
struct KeptCall {
  Identified place;
  bool in_model;  // the id does not depend on frames outside the outermost module
};
/// Empty if something is not kept yet or has died, or if another thread names a place. With the interpreter lock.
std::optional<KeptCall> identify_kept(uint64_t name_hash, const std::vector<pytorch::TensorOperand>& tensors,
                                      bool recomputing);

}  // namespace amanda::python
