// What a binding does around a wait for another thread.
#pragma once

namespace amanda {

/// Called around a wait for another thread's analysis, or for a graph that another thread instruments; bindings release
/// their interpreter lock here.
struct WaitHooks {
  void* (*before)() = nullptr;
  void (*after)(void*) = nullptr;
};
void set_wait_hooks(WaitHooks hooks);
const WaitHooks& wait_hooks();

}  // namespace amanda
