// The handle by which the Python class of contexts reaches its C++ context.
#pragma once

#include <memory>

#include "module.h"

namespace amanda::python {

/// `context` is null once the scope's results are gone. Any thread may destroy these, without the interpreter lock.
struct ContextHandle {
  std::weak_ptr<OpContext> context;

  /// The context, kept alive while it is read.
  std::shared_ptr<OpContext> get() const {
    if (std::shared_ptr<OpContext> found = context.lock()) return found;
    throw Error("[context] the scope of this context is gone; keep what you need from it as a key of your own");
  }
};

}  // namespace amanda::python
