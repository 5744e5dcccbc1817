// What the driver asks of Python, where there is one. It links no Python: the bindings fill these in.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "amanda/backend.h"

struct _object;  // PyObject

namespace amanda::pytorch {

class Lifetime;

/// A tensor among an operator's operands.
struct TensorOperand {
  size_t position;
  const at::TensorBase* tensor;
  bool counts;  // as a parameter, for all that is known before
};

/// All of them may be called with or without the interpreter lock.
struct PythonHooks {
  /// This thread's Python code as addresses and offsets, hashed; 0: no Python runs here. Another function takes its
  /// place when the process enters its first `with amanda.root(name)`.
  std::atomic<uint64_t (*)()> raw_path{nullptr};
  /// What a call at this raw path is, in terms that mean the same in every process: slow, asked once. 0: no telling.
  /// Afterwards the tensors that the id names have numbers.
  OpId (*resolve)(uint64_t raw_path, uint64_t name_hash, const std::vector<TensorOperand>& tensors) = nullptr;
  std::string (*describe)(uint64_t raw_path, Detail) = nullptr;  // of a resolved path: module path or source
  bool (*in_recompute)() = nullptr;                              // does this thread recompute a checkpointed region?
  bool (*in_backward_pass)() = nullptr;  // does this thread's Python code run the engine, and recompute nothing?
  /// Of a tensor and its Python object: its number, times two, if it has one; the lowest bit: does it count as a
  /// parameter by what it is, an nn.Parameter or a buffer of a known model? No number is given twice, and a tensor
  /// loses its own when it dies.
  uint64_t (*tag)(const c10::TensorImpl*, _object*) = nullptr;
  /// The name that a parameter or a buffer, or what such a one is a view of, has in its model; "": it is no known one.
  /// May throw what Python raises.
  std::string (*parameter_name)(_object*) = nullptr;
  bool (*is_symbolic)(_object*) = nullptr;  // a fake or functional tensor: somebody traces, no program runs
  at::Tensor (*held_by_python)(const Lifetime&) = nullptr;  // the tensor, if a Python object keeps it alive
  at::Tensor (*unwrapped)(const at::Tensor&) = nullptr;     // what a wrapper of torch.func wraps; undefined: it is none
  bool (*is_programs)(const std::exception_ptr&) = nullptr;  // did the program's own Python code raise it?
  void (*rethrow)() = nullptr;  // in a handler: the exception, as Python code should see it

  /// Something died whose address may stand in a raw path: what was resolved before counts no more.
  std::atomic<uint64_t> epoch{1};
};

extern __attribute__((visibility("default"))) PythonHooks python_hooks;

}  // namespace amanda::pytorch
