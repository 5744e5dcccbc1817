// A large object for each thread.
#pragma once

#include <memory>

namespace amanda {

/// On the heap, where it is made when first asked for: a large thread-local object would not fit into the static TLS
/// block of a library opened late. The thread's end destroys it.
template <class T>
T& per_thread() {
  thread_local constinit T* here = nullptr;
  if (!here) {
    thread_local std::unique_ptr<T> owner = std::make_unique<T>();
    here = owner.get();
  }
  return *here;
}

}  // namespace amanda
