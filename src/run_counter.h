// The number of times that an operator has run since its scope was entered.
#pragma once

#include <atomic>
#include <cstdint>

namespace amanda {

/// The counter of one operator in one scope. Counts the executions in which a routine asked for the shared objects
/// (Values::run()).
class RunCounter {
 public:
  /// The number of this execution. `entry`: the number of times that the scope was opened. The result begins again at 0
  /// with each entry.
  uint64_t next(uint64_t entry) {
    const uint64_t tag = entry << kCountBits;
    uint64_t now = state_.load(std::memory_order_relaxed);
    uint64_t then;
    do {
      then = ((now ^ tag) >> kCountBits) == 0 ? now + 1 : tag + 1;
    } while (!state_.compare_exchange_weak(now, then, std::memory_order_relaxed));
    return (then & ((uint64_t{1} << kCountBits) - 1)) - 1;
  }

 private:
  static constexpr int kCountBits = 40;
  std::atomic<uint64_t> state_{0};  // the entry, and the count in the low bits
};

}  // namespace amanda
