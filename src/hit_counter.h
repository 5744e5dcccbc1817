// The number of times that the operators of a scope ran without an analysis.
#pragma once

#include <atomic>
#include <cstdint>

#include "amanda/base/thread_calls.h"

namespace amanda {

/// Counts on all threads. The one that created it counts without a locked instruction, which would take some 5 ns.
class HitCounter {
 public:
  /// One more; `here`: of the calling thread.
  void add(const ThreadCalls& here) {
    if (&here == owner_) {
      owners_.store(owners_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    } else {
      others_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  uint64_t count() const { return owners_.load(std::memory_order_relaxed) + others_.load(std::memory_order_relaxed); }

 private:
  // Only compared. When the thread has ended, another one may have its address: it then counts in its place.
  const ThreadCalls* const owner_ = &ThreadCalls::current();
  std::atomic<uint64_t> owners_{0}, others_{0};
};

}  // namespace amanda
