// A large object for each thread.
#pragma once

#include <memory>

#include "amanda/base/lasting.h"

namespace amanda {

/// The calling thread's object of type `T`, created on first use and destroyed when the thread ends.
///
/// It is on the heap: a large thread-local object would not fit into the static TLS block of a library that is loaded
/// late.
template <class T>
T& per_thread() {
  thread_local constinit T* here = nullptr;
  if (!here) {
    const Lasting memory;
    thread_local std::unique_ptr<T> owner = std::make_unique<T>();
    here = owner.get();
  }
  return *here;
}

}  // namespace amanda
