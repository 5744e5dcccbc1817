// Options of a scope, and counters of its cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace amanda {

/// The effect of an exception in a routine: it reaches the program (`kRaise`), or the tool and its dependents stop for
/// the rest of the scope, with one log line (`kDisable`).
enum class OnError : uint8_t { kRaise, kDisable };

/// Options of a Scope.
struct ScopeOptions {
  OnError on_error = OnError::kRaise;  ///< what happens if a routine throws
  /// For bindings: keeps the tools alive while the scope exists, is entered, or is used by a thread or a graph's tap.
  /// Released on any thread.
  std::shared_ptr<const void> tools_owner{};
};

/// The number of operators without actions and keys that a scope remembers. The least recently used are evicted first.
inline constexpr size_t kMaxEmptyRecords = 1 << 16;

/// Counters of a scope's cache of analysis results.
struct CacheInfo {
  uint64_t hits = 0;    ///< operator runs that needed no analysis
  uint64_t misses = 0;  ///< analysis routines run
  size_t size = 0;      ///< operators known; only those without actions and keys are limited, to kMaxEmptyRecords
};

}  // namespace amanda
