// A profiler's queries of a framework, beyond the seam.
#pragma once

#include <cstdint>

namespace amanda {

/// A profiler's queries of a framework beyond the seam: plain functions, so that extension modules that are built
/// separately can pass them on. Any of them may be null; its quantity is then not measured.
struct FrameworkProbe {
  /// Called on the allocating thread with the bytes that an allocator handed out; negative if they were freed.
  using Heard = void (*)(int64_t bytes, bool on_host) noexcept;

  /// From now on `heard` gets the allocations of this thread. Returns the listener. Null if another one is active, for
  /// instance the framework's own profiler.
  void* (*listen)(Heard heard) = nullptr;
  /// Ends a listener, on the thread that began it. Listeners may end in any order.
  void (*unlisten)(void* listener) noexcept = nullptr;
  /// The name of a profiler of the framework that is active on this thread. Null if there is none.
  const char* (*other_profiler)() = nullptr;
  /// Waits until the devices in use are idle. Throws the error that a device reports.
  void (*synchronize)() = nullptr;
};

/// The name of a capsule that holds a `const FrameworkProbe*`, which lives as long as the process.
inline constexpr const char* kFrameworkProbeCapsule = "amanda.framework_probe";

}  // namespace amanda
