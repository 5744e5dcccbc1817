// The two dispatch keys that operators are caught with, and their state on this thread.
#pragma once

#include <c10/core/DispatchKeySet.h>

#include "amanda/backend.h"

namespace amanda::pytorch {

enum class KeyRole : uint8_t {
  kNone,
  kFilter,  // falls through, except for operators that a scope asked for
  kAll,     // catches every operator
};

/// Chosen once, among keys that nobody registered a fallback for; both above autograd and functorch where possible.
struct Keys {
  c10::DispatchKey filter, all;
  c10::DispatchKeySet both;

  c10::DispatchKey of(KeyRole role) const { return role == KeyRole::kAll ? all : filter; }
};
const Keys& keys();
/// Chooses them, once. Throws `Error` when no two keys are free.
const Keys& choose_keys();

/// The key that operators are caught with for these scopes.
KeyRole role_for(const ScopeStack* scopes);

/// Turns this thread's keys on and off, as `role` says.
void include_keys(KeyRole role);

/// What this thread's dispatch should be.
struct ThreadKeys {
  ScopeStack* scopes = nullptr;
  KeyRole role = KeyRole::kNone;
  // Routines, and calls of compiled functions, that are running: nothing inside is observed, even where the keys are on
  // (torch.func puts them back at each of its levels).
  size_t unobserved = 0;

  /// Puts the thread's key bits as `role` says; guards that save and restore all bits may have changed them.
  void restore() const { include_keys(role); }
  /// Inside an operator, where nobody was to see its parts, a guard keeps the keys off: until it ends, or somebody is
  /// to see them after all.
  void unblind() const;
};
ThreadKeys& thread_keys();

}  // namespace amanda::pytorch
