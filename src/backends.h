// The attached drivers, and small things that more than one file of the core needs from another's thread state.
#pragma once

#include <vector>

#include "amanda/backend.h"
#include "amanda/scope.h"

namespace amanda {

const std::vector<Backend*>& attached_backends();
/// Tells the drivers of this thread's scopes again: what their tools ask for may have changed.
void refresh_this_thread();
const WaitHooks& current_wait_hooks();

}  // namespace amanda
