// Switches of the calling thread: instrumentation and its cache, on and off.
#pragma once

#include <cstdint>
#include <thread>

namespace amanda {

/// Turns instrumentation or its cache on or off for this thread, until the object is destroyed: `Switch off =
/// disabled();`
///
/// If several are alive, the most recent one counts. They may be destroyed in any order.
class [[nodiscard]] Switch {
 public:
  /// The feature that a switch turns on or off.
  enum class Which : uint8_t { kInstrumentation, kCache };
  /// Turns it on or off on the calling thread.
  Switch(Which which, bool on);
  ~Switch();
  /// Moves the responsibility to restore the previous state.
  Switch(Switch&& other) noexcept;
  /// Restores the previous state before the destructor does. Throws `Error` on another thread than the switch's.
  void put_back();
  Switch& operator=(Switch&&) = delete;

 private:
  Which which_;
  std::thread::id thread_ = std::this_thread::get_id();
  uint64_t turn_;  // among this thread's
  bool armed_ = true;
};

/// Switches instrumentation off on this thread: tools see nothing, and no routine runs.
Switch disabled();
/// Switches instrumentation on again on this thread, inside disabled().
Switch enabled();
/// Switches the action cache off on this thread: every run of an operator is analyzed again.
Switch cache_disabled();
/// Switches the action cache on again on this thread, inside cache_disabled().
Switch cache_enabled();
/// True if instrumentation is on for this thread. It is on at first.
bool is_enabled();
/// True if the action cache is on for this thread. It is on at first.
bool is_cache_enabled();

}  // namespace amanda
