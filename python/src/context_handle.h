// What the Python class of contexts reaches its C++ context by.
#pragma once

#include <memory>

#include "module.h"

namespace amanda::python {

/// Null once the scope's results are gone, which any thread may destroy, without the interpreter lock.
struct ContextHandle {
  std::weak_ptr<OpContext> context;

  /// Keeps it alive while it is read.
  std::shared_ptr<OpContext> get() const {
    if (std::shared_ptr<OpContext> found = context.lock()) return found;
    throw Error("[context] the scope of this context is gone; keep what you need from it as a key of your own");
  }
};

}  // namespace amanda::python
