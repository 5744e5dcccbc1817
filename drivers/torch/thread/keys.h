// The two dispatch keys that operators are caught with, and their state on this thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
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

/// Installs the fallbacks, once and for good. Throws `Error` when no two keys are free.
void install_keys();
/// How many operators promote() catches so far.
size_t count_promoted();

/// Catches `op` on the filter key too, from now on and for the life of the process: taking a kernel out again fails
/// under threads that have the key on.
void promote(const c10::OperatorHandle& op);
/// Promotes all operators that these patterns ask for.
void promote_wanted(std::vector<std::string> patterns);

/// The key that operators are caught with for these scopes.
KeyRole role_for(const ScopeStack* scopes);

/// What this thread's dispatch should be.
struct ThreadKeys {
  ScopeStack* scopes = nullptr;
  KeyRole role = KeyRole::kNone;
  // Routines, and calls of compiled functions, that are running: nothing inside is observed, even where the keys are on
  // (torch.func puts them back at each of its levels).
  size_t unobserved = 0;

  /// Puts the thread's key bits as `role` says; guards that save and restore all bits may have changed them.
  void restore() const;
  /// Inside an operator, where nobody was to see its parts, a guard keeps the keys off: until it ends, or somebody is
  /// to see them after all.
  void unblind() const;
};
ThreadKeys& thread_keys();

/// Has operators on this thread caught for its scopes, or not. A backward pass turns it off: what its nodes call is no
/// operator of the program's. What a checkpoint recomputes there is, and turns it on. Returns what to put back: false
/// if it was off; without scopes it is on, for those that are entered meanwhile.
bool catch_operators(bool on);

}  // namespace amanda::pytorch
