// The operand behind a Value of a graph driver in Python, for its bindings and for libraries without Python. The lowest
// bits of the Value's pointer give its type.
#pragma once

#include <cstdint>

#include "amanda/value.h"

struct _object;  // PyObject

namespace amanda::python {

/// An operand that is no Python object.
class __attribute__((visibility("default"))) NativeOperand {
 public:
  /// For Backend::describe(). Without the interpreter lock.
  virtual ValueInfo describe() const = 0;

  Value value() { return {reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(this) | kBit)}; }
  /// The operand. Null if the value is null, or is something else.
  static NativeOperand* of(Value value) {
    const auto bits = reinterpret_cast<uintptr_t>(value.ref);
    return bits & kBit ? reinterpret_cast<NativeOperand*>(bits & ~kBit) : nullptr;
  }

 protected:
  ~NativeOperand() = default;

 private:
  static constexpr uintptr_t kBit = 1;
};

/// A Python object as an operand: a symbol of a graph, where analyses run. Borrowed.
struct ObjectOperand {
  static Value value(_object* object) { return {reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(object) | kBit)}; }
  /// The operand. Null if the value is null, or is something else.
  static _object* of(Value value) {
    const auto bits = reinterpret_cast<uintptr_t>(value.ref);
    return bits & kBit ? reinterpret_cast<_object*>(bits & ~kBit) : nullptr;
  }

 private:
  static constexpr uintptr_t kBit = 2;
};

}  // namespace amanda::python
