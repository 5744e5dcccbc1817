// Global counters that invalidate derived data. Readers compare; they never wait.
#pragma once

#include <atomic>
#include <cstdint>

#include "amanda/driver/known_call.h"

namespace amanda {

// Another one is plan_generation, which drivers read, too: see amanda/driver/known_call.h.
extern std::atomic<uint64_t> tool_generation;  // some tool's registrations changed, or a tool stopped
extern std::atomic<uint64_t> analyses_done;    // an analysis was found to remain: perhaps not any more

/// Registrations changed or a tool stopped: rebuilds the tables of the operators that tools ask for, and merges plans
/// again.
void tools_changed();
/// Actions were removed or dropped: merges plans again.
inline void plans_changed() { plan_generation.fetch_add(1); }

}  // namespace amanda
