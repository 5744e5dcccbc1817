// The clock of the tools that measure or order runs.
#pragma once

#include <chrono>
#include <cstdint>

namespace amanda::tools {

/// Nanoseconds on the clock of Python's `time.perf_counter_ns`.
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace amanda::tools
