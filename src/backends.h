// The attached drivers, and small things that more than one file of the core needs from another's thread state.
#pragma once

#include <memory>
#include <span>

#include "amanda/backend.h"

namespace amanda {

class Tool;

std::span<Backend* const> attached_backends();
/// Tells the drivers of this thread's scopes again: what their tools ask for may have changed.
void refresh_this_thread();
/// The same, if something has changed since they were told.
void refresh_if_stale();
/// Is the tool in an open scope of another thread?
bool is_open_elsewhere(const Tool& tool);
/// This thread's open scopes; null: none, or switched off.
std::shared_ptr<ScopeStack> scopes_of_this_thread();

}  // namespace amanda
