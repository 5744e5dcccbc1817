// The scopes of a thread that called backward(), on the threads that the autograd engine runs it on.
#pragma once

#include "amanda/backend.h"

namespace amanda::pytorch {

/// This thread's scopes are now these (null: none), for what the engine runs on other threads on behalf of this one. It
/// costs every node of every backward pass some 50 ns, so it is done where there are such threads, or somebody asks.
void publish_scopes(ScopeStack* scopes);
/// Once some backward operator is to be seen: where the engine may use another thread after all.
void publish_scopes_now();
/// This thread's scopes; on a thread of the engine, those of the thread that called backward().
ScopeStack* current_scopes();

}  // namespace amanda::pytorch
