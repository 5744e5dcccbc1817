// The entry point of every operator call, and the boxed kernels of the two keys.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "forward/forward_call.h"
#include "thread/engine_threads.h"
#include "thread/keys.h"

namespace amanda::pytorch {

/// The scopes that see a call which this thread caught on the key of `role`. Null if there are none. `held` keeps those
/// of another thread alive.
ScopeStack* observers(KeyRole role, CurrentScopes& held);
/// True if a caught call is an operator of the program. May run Python code, so call this before observers().
bool is_observed(const ForwardCall& call, c10::DispatchKeySet key_set);
/// Runs the call under its observers. Throws errors in the form that PyTorch's callers handle.
void observe(ScopeStack& scopes, ForwardCall& call);
/// The keys with which a call continues that was caught on the key of `role`.
inline c10::DispatchKeySet below(KeyRole role, c10::DispatchKeySet key_set) { return key_set & keys().below(role); }

void catch_all(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
void catch_filtered(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace amanda::pytorch
