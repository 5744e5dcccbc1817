// What a profiler asks of a framework, beyond the seam.
#pragma once

#include <cstdint>

namespace amanda {

/// Plain functions, so that extension modules built apart can hand them over. Any may be null: that is not measured.
struct FrameworkProbe {
  /// Told on the allocating thread: bytes that an allocator handed out, negative if they were given back.
  using Heard = void (*)(int64_t bytes, bool on_host) noexcept;

  /// From now on `heard` is told what this thread allocates. Returns the listener; null: someone else is told, for
  /// instance the framework's own profiler.
  void* (*listen)(Heard heard) = nullptr;
  /// On the same thread. Listeners end in any order.
  void (*unlisten)(void* listener) noexcept = nullptr;
  /// The name of a profiler of the framework's that is on in this thread; null: none.
  const char* (*other_profiler)() = nullptr;
  /// Waits until the devices in use have done their work. Throws what a device reports.
  void (*synchronize)() = nullptr;
};

/// The name of a capsule that holds a `const FrameworkProbe*`, which lives as long as the process.
inline constexpr const char* kFrameworkProbeCapsule = "amanda.framework_probe";

}  // namespace amanda
