// The scopes of a thread that called backward(), on the threads that the autograd engine runs it on.
#pragma once

#include <memory>
#include <utility>

#include "amanda/backend.h"

namespace amanda::pytorch {

/// What operators and nodes on this thread are under.
class CurrentScopes {
 public:
  CurrentScopes() = default;
  /// Of this thread: they stay alive during a call of the core.
  explicit CurrentScopes(ScopeStack* own) : scopes_(own) {}
  /// Of another thread, which may leave them meanwhile.
  explicit CurrentScopes(std::shared_ptr<ScopeStack> borrowed) : scopes_(borrowed.get()), held_(std::move(borrowed)) {}

  ScopeStack* get() const { return scopes_; }
  ScopeStack& operator*() const { return *scopes_; }
  explicit operator bool() const { return scopes_ != nullptr; }
  /// Keeps them alive outside calls of the core, too.
  void hold();

 private:
  ScopeStack* scopes_ = nullptr;
  std::shared_ptr<ScopeStack> held_;
};

/// This thread's scopes are now these (null: none), for what the engine runs on other threads on behalf of this one. It
/// costs every node of every backward pass some 50 ns, so it is done where there are such threads, or somebody asks.
void publish_scopes(ScopeStack* scopes);
/// Once some backward operator is to be seen: where the engine may use another thread after all.
void publish_scopes_now();
/// This thread's scopes; on a thread of the engine, those of the thread that called backward().
CurrentScopes current_scopes();

/// Has operators on this thread caught for its scopes, or not. A backward pass turns it off: what its nodes call is no
/// operator of the program's. What a checkpoint recomputes there is, and turns it on. Returns what to put back: false
/// if it was off; without scopes it is on, for those that are entered meanwhile.
bool catch_operators(bool on);

}  // namespace amanda::pytorch
