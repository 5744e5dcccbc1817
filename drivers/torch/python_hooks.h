// What the driver asks of Python, where there is one. It links no Python: the bindings fill these in.
#pragma once

#include <cstdint>
#include <string>

#include "amanda/backend.h"

struct _object;  // PyObject

namespace amanda::pytorch {

/// The Python code that called an operator.
struct CallPath {
  uint64_t hash = 0;  // of names and source positions; 0: no Python runs here
  uint64_t key = 0;   // what describe() finds it by, on the same thread
};

/// All of them may be called with or without the interpreter lock.
struct PythonHooks {
  CallPath (*call_path)() = nullptr;
  std::string (*describe)(uint64_t key, Detail) = nullptr;  // module path or source; "" if it is no longer known
  bool (*in_recompute)() = nullptr;                         // does this thread recompute a checkpointed region?
  bool (*is_parameter)(_object*) = nullptr;                 // an nn.Parameter or nn.Buffer?
  bool (*is_symbolic)(_object*) = nullptr;  // a fake or functional tensor: somebody traces, no program runs
  void (*rethrow)() = nullptr;              // in a handler: the exception, as Python code should see it
};

extern __attribute__((visibility("default"))) PythonHooks python_hooks;

}  // namespace amanda::pytorch
