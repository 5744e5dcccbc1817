// Switches of the calling thread: instrumentation and its cache, on and off.
#pragma once

#include <cstdint>
#include <thread>

namespace amanda {

/// A switch of this thread, put back by its destructor: `Switch off = disabled();`
///
/// Of those that are turned, the last one counts. They are put back in any order.
class [[nodiscard]] Switch {
 public:
  enum class Which : uint8_t { kInstrumentation, kCache };
  Switch(Which which, bool on);
  ~Switch();
  Switch(Switch&& other) noexcept;
  /// Before the destructor does. Throws `Error` on another thread than the switch's.
  void put_back();
  Switch& operator=(Switch&&) = delete;

 private:
  Which which_;
  std::thread::id thread_ = std::this_thread::get_id();
  uint64_t turn_;  // among this thread's
  bool armed_ = true;
};

Switch disabled();
Switch enabled();
Switch cache_disabled();
Switch cache_enabled();
bool is_enabled();
bool is_cache_enabled();

}  // namespace amanda
