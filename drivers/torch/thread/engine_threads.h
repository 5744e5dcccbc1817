// The scopes of a thread that called backward(), on the threads that the autograd engine runs it on.
#pragma once

#include <memory>
#include <utility>

#include "amanda/driver/backend.h"

namespace amanda::pytorch {

/// The scopes under which operators and nodes run on this thread.
class CurrentScopes {
 public:
  CurrentScopes() = default;
  /// Scopes of this thread: they stay alive during a call of the core.
  explicit CurrentScopes(ScopeStack* own) : scopes_(own) {}
  /// Scopes of another thread, which may leave them meanwhile.
  explicit CurrentScopes(std::shared_ptr<ScopeStack> borrowed) : scopes_(borrowed.get()), held_(std::move(borrowed)) {}

  ScopeStack* get() const { return scopes_; }
  ScopeStack& operator*() const { return *scopes_; }
  explicit operator bool() const { return scopes_ != nullptr; }
  /// Keeps them alive outside calls of the core too.
  void hold();

 private:
  ScopeStack* scopes_ = nullptr;
  std::shared_ptr<ScopeStack> held_;
};

/// Publishes this thread's scopes (null if there are none), for nodes that the engine runs on other threads on behalf
/// of this one. It costs every node of every backward pass some 50 ns, so it is enabled only if there are such threads,
/// or on first use.
void publish_scopes(ScopeStack* scopes);
/// Enables publishing, inside a node that begins a backward pass of its own: the engine may use another thread for
/// that.
void publish_scopes_now();
/// This thread's scopes; on a thread of the engine, those of the thread that called backward().
CurrentScopes current_scopes();

/// Turns the interception of operators on this thread on or off. A backward pass turns it off: operators called by
/// autograd nodes are not instrumented. A checkpoint that recomputes there turns it on. Returns the previous state;
/// without scopes that is on, for scopes that are entered meanwhile.
bool catch_operators(bool on);

}  // namespace amanda::pytorch
