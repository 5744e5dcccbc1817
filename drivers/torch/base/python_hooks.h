// Functions that the driver needs from Python, if the process has it. The driver does not link Python: the bindings set
// these functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "amanda/driver/backend.h"

struct _object;  // PyObject

namespace amanda::pytorch {

class Lifetime;

/// A tensor among an operator's operands.
struct TensorOperand {
  size_t position;
  const at::TensorBase* tensor;
  bool counts;  // counts as a parameter by type alone, before names are resolved
};

/// All of them may be called with or without the interpreter lock.
struct PythonHooks {
  /// This thread's Python code as addresses and offsets, hashed. 0 if no Python runs here. The function is replaced
  /// when the process enters its first `with amanda.root(name)`. `walk`: ThreadKeys::walk of this thread.
  std::atomic<uint64_t (*)(void*& walk)> raw_path{nullptr};
  /// The id of a call at this raw path, the same in every process. Slow, called once. 0 if it is unknown. Afterwards
  /// the tensors that the id depends on have numbers.
  OpId (*resolve)(uint64_t raw_path, uint64_t name_hash, const std::vector<TensorOperand>& tensors) = nullptr;
  std::string (*describe)(uint64_t raw_path, Detail) = nullptr;  // of a resolved path: module path or source
  bool (*in_recompute)() = nullptr;                              // true if this thread recomputes a checkpointed region
  bool (*in_backward_pass)() = nullptr;  // true if this thread's Python code runs the engine, and recomputes nothing
  /// For a tensor and its Python object: its number, times two, if it has one. The lowest bit is set if it counts as a
  /// parameter, because it is an nn.Parameter or a buffer of a known model. Numbers are never reused, and a tensor's
  /// number is released when it dies.
  uint64_t (*tag)(const c10::TensorImpl*, _object*) = nullptr;
  /// The name in its model of a parameter or buffer, or of the one that a view is a view of. "" if it is not a known
  /// one. May throw an exception that Python raises.
  std::string (*parameter_name)(_object*) = nullptr;
  bool (*is_symbolic)(_object*) = nullptr;  // a fake or functional tensor: the program is traced, not run
  at::Tensor (*held_by_python)(const Lifetime&) = nullptr;   // the tensor, if a Python object keeps it alive
  at::Tensor (*unwrapped)(const at::Tensor&) = nullptr;      // the tensor in a torch.func wrapper, or an undefined one
  bool (*is_programs)(const std::exception_ptr&) = nullptr;  // true if the program's own Python code raised it
  void (*rethrow)() = nullptr;  // in a handler: the exception, as Python code should see it

  /// An object whose address may be part of a raw path died: earlier results are no longer valid.
  std::atomic<uint64_t> epoch{1};
};

extern __attribute__((visibility("default"))) PythonHooks python_hooks;

}  // namespace amanda::pytorch
