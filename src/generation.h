// Two global counters that say "what you derived may be stale". Readers compare, never wait.
#pragma once

#include <atomic>
#include <cstdint>

namespace amanda {

extern std::atomic<uint64_t> tool_generation;  // some tool's registrations changed, or a tool stopped
extern std::atomic<uint64_t> plan_generation;  // some operator's actions changed

/// Registrations changed or a tool stopped: tables of who asks for what are rebuilt, plans merged anew.
void tools_changed();
/// Actions were removed or forgotten: plans are merged anew.
inline void plans_changed() { plan_generation.fetch_add(1); }

}  // namespace amanda
