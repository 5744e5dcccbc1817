// What a scope is made with, and what it says about its cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace amanda {

enum class OnError : uint8_t { kRaise, kDisable };

struct ScopeOptions {
  OnError on_error = OnError::kRaise;
  /// For bindings: keeps the tools alive until the scope is destroyed, left, and used by no thread and no graph's tap.
  /// Released on any thread.
  std::shared_ptr<const void> tools_owner{};
};

/// Operators on which nothing was scheduled and no key was left are remembered up to this number, those in use.
inline constexpr size_t kMaxEmptyRecords = 1 << 16;

struct CacheInfo {
  uint64_t hits = 0;    // operator runs that needed no analysis
  uint64_t misses = 0;  // analysis routines run
  size_t size = 0;      // operators known; only the empty ones among them have a maximum
};

}  // namespace amanda
