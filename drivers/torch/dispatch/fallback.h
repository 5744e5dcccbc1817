// Where every operator call comes in: what is done with it, and the boxed kernels behind the two keys.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "forward/forward_call.h"
#include "thread/engine_threads.h"
#include "thread/keys.h"

namespace amanda::pytorch {

/// Who sees what this thread caught on the key of `role`; null: nobody. `held` keeps those of another thread alive.
ScopeStack* observers(KeyRole role, CurrentScopes& held);
/// Is a caught call an operator of the program? May run Python code, so it is asked before observers() are.
bool is_observed(const ForwardCall& call, c10::DispatchKeySet key_set);
/// Runs the call under its observers. Errors are thrown as the caller knows them.
void observe(ScopeStack& scopes, ForwardCall& call);
/// Where a call goes on that was caught on the key of `role`.
inline c10::DispatchKeySet below(KeyRole role, c10::DispatchKeySet key_set) {
  // The other key may be in the set when a guard restored its bit: one call is one event.
  return (key_set & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, keys().of(role))) - keys().both;
}

void catch_all(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
void catch_filtered(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace amanda::pytorch
