// What the Python class of contexts reaches its C++ context by.
#pragma once

#include "module.h"

namespace amanda::python {

/// Null once the scope's results are gone.
struct ContextHandle {
  OpContext* context = nullptr;

  OpContext& get() const {
    if (context) return *context;
    throw Error("[context] the scope of this context is gone; keep what you need from it as a key of your own");
  }
};

}  // namespace amanda::python
