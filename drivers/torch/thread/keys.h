// The two dispatch keys that intercept operators, and their state on this thread.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "amanda/base/thread_calls.h"
#include "amanda/driver/backend.h"

namespace amanda::pytorch {

enum class KeyRole : uint8_t {
  kNone,
  kFilter,  // falls through, except for operators that a scope asks for
  kAll,     // catches every operator
};

/// Chosen once, among keys without a registered fallback; both above autograd and functorch if possible.
struct Keys {
  c10::DispatchKey filter = c10::DispatchKey::Undefined, all = c10::DispatchKey::Undefined;
  c10::DispatchKeySet both;
  c10::DispatchKeySet below_filter, below_all;  // the keys with which a call that was caught on that key may continue

  c10::DispatchKeySet below(KeyRole role) const { return role == KeyRole::kAll ? below_all : below_filter; }
};
/// They are set before the first kernel is registered.
extern Keys chosen_keys;
inline const Keys& keys() { return chosen_keys; }
/// Chooses them, once. Throws `Error` if no two keys are free.
const Keys& choose_keys();

/// The key that intercepts operators for these scopes.
KeyRole role_for(const ScopeStack* scopes);

/// Turns this thread's keys on and off according to `role`.
void include_keys(KeyRole role);
/// The key that is on.
KeyRole key_role_here();

class PlaceTable;
class RoutineState;

/// The intended state of this thread's dispatch. Every call of an operator reads it, so all data that a call needs is
/// found by one look-up.
struct ThreadKeys {
  ScopeStack* scopes = nullptr;
  uint64_t serial = 0;  // of the scopes, or 0 if there are none
  KeyRole role = KeyRole::kNone;
  // The number of running routines and calls of compiled functions: nothing inside is observed, even if the keys are on
  // (torch.func restores them at each of its levels).
  size_t unobserved = 0;
  size_t uncounted = 0;    // graphs that run, or are compiled, whose operators coverage reports count in another way
  bool recording = false;  // a CallRecorder takes the calls of a program that is traced: all of them are caught

  size_t running_nodes = 0;  // nodes of backward passes that have begun, and those that never ended since a pass failed
  void* walk = nullptr;      // the bindings' memory of the last PythonHooks::raw_path()

  RoutineState* routine = nullptr;  // the innermost one that runs
  void* routine_room = nullptr;     // for the outermost one
  PlaceTable* places = nullptr;     // that it knows, or null
  // The core's and PyTorch's own state of this thread, which never moves; see with_torch_state().
  ThreadCalls* calls = nullptr;
  c10::impl::PODLocalDispatchKeySet* bits = nullptr;
  c10::AutogradState* autograd = nullptr;

  /// Finds the core's state and PyTorch's, once.
  ThreadKeys& with_torch_state() {
    if (C10_UNLIKELY(!bits)) find_torch_state();
    return *this;
  }
  /// Sets the thread's key bits according to `role`; guards that save and restore all bits may have changed them.
  void restore() const { include_keys(recording ? KeyRole::kAll : role); }
  /// Inside an operator whose parts no tool sees, a guard keeps the keys off until it ends, or until a tool is to see
  /// them.
  void unblind() const;

 private:
  void find_torch_state();
};
extern constinit thread_local ThreadKeys this_threads_keys;
inline ThreadKeys& thread_keys() {
  ThreadKeys* here = &this_threads_keys;
  asm("" : "+r"(here));  // g++ finds the address again for each member otherwise, by a call
  return *here;
}

/// While it exists, and `applies`, this thread catches no operators.
class CatchNothing : NoCopy {
 public:
  explicit CatchNothing(c10::impl::PODLocalDispatchKeySet& bits, bool applies = true) : bits_(bits) {
    if (!applies) return;
    const c10::DispatchKeySet before = bits_.excluded();
    excluded_ = keys().both - before;
    bits_.set_excluded(before | excluded_);
  }
  ~CatchNothing() { bits_.set_excluded(bits_.excluded() - excluded_); }

 private:
  c10::impl::PODLocalDispatchKeySet& bits_;
  c10::DispatchKeySet excluded_;  // that were not before
};

}  // namespace amanda::pytorch
