// The attached drivers, and small functions on thread state that several files of the core need.
#pragma once

#include <memory>
#include <span>

#include "amanda/driver/backend.h"

namespace amanda {

class Tool;

std::span<Backend* const> attached_backends();
/// Calls switch_to() of all drivers again: the operators that this thread's tools ask for may have changed.
void refresh_this_thread();
/// The same, if something changed since the last call.
void refresh_if_stale();
/// True if the tool is in an open scope of another thread.
bool is_open_elsewhere(const Tool& tool);
/// This thread's open scopes. Null if there are none, or if instrumentation is switched off.
std::shared_ptr<ScopeStack> scopes_of_this_thread();

}  // namespace amanda
