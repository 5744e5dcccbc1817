// Hooks of a binding around a wait for another thread.
#pragma once

namespace amanda {

/// Called around a wait for another thread's analysis, or for a graph that another thread instruments. Bindings release
/// their interpreter lock here.
struct WaitHooks {
  void* (*before)() = nullptr;     ///< before the wait, on the thread that waits; the result is passed to `after`
  void (*after)(void*) = nullptr;  ///< after the wait, on the same thread
};
/// Installs the hooks for the whole process. Call it once, before any scope is entered.
void set_wait_hooks(WaitHooks hooks);
/// The installed hooks.
const WaitHooks& wait_hooks();

}  // namespace amanda
