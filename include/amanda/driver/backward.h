// The seam, backward half: a driver's queries about backward operators that the framework creates and runs itself.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "amanda/base/thread_calls.h"
#include "amanda/driver/backend.h"
#include "amanda/driver/hook_needs.h"

namespace amanda {

/// A driver's queries about backward operators. All functions may be called on any thread.
class Backward {
 public:
  /// The hooks that the backward operator needs under these scopes. Call this once, when the operator was created.
  static HookNeeds hook_needs(ScopeStack& scopes, OpSite& backward);
  /// The tools that are subscribed to the backward operators of a forward operator that bypassed Engine::on_op(). Null
  /// if there are none.
  static SubscriptionPtr subscription(ScopeStack& scopes, OpSite& forward);
  /// The object that the backward operators of one execution of such an operator share, as a RunSource returns it.
  /// Never null.
  static RunStatePtr new_run(ScopeStack& scopes, OpSite& forward);
  /// `subscription` without the tools that are in `known`. Null if no tool is left.
  static SubscriptionPtr without(const SubscriptionPtr& subscription, const std::vector<SubscriptionPtr>& known);
  /// True if all scopes of the subscription have been destroyed.
  static bool is_over(const Subscription& subscription) noexcept;
};

/// The backward operators that one run of a forward operator has created, while its driver installs their hooks. Their
/// needs are kept with the forward operator's plan: where a run creates the same backward operators again, nothing is
/// looked up.
class BackwardBinding : NoCopy {
 public:
  /// `forward` comes from the RunSource of OpCall::bind_backward() and outlives this object. If it is null, everything
  /// is looked up.
  BackwardBinding(ScopeStack& scopes, const Plan* forward);
  ~BackwardBinding();

  /// The hooks that the operator needs. Null if they are not known yet; then call look_up(). `number` counts the
  /// operators of this run, from 0 on.
  const HookNeeds* known(size_t number, OpId id) const;
  /// The same as Backward::hook_needs(), which is remembered for later runs.
  HookNeeds look_up(size_t number, OpSite& backward);

 private:
  ScopeStack& scopes_;
  const Plan* const forward_;
  const uint64_t generation_, analyses_;
  std::unique_ptr<struct BackwardPlaces> learned_;  // null if everything was known
};

/// A backward operator that the framework runs, and that has actions before it but no others, or none: in place of a
/// BackwardRun, without any look-up.
class PlainBackwardRun {
 public:
  /// The operator with this number and this id in a BackwardBinding for `forward`.
  PlainBackwardRun(ScopeStack& scopes, const std::weak_ptr<const Plan>& forward, size_t number, OpId id);

  /// True if this object can run the operator. Otherwise a BackwardRun is needed: other scopes are open, tools have
  /// changed, or there is more to do.
  explicit operator bool() const { return plan_ != nullptr; }
  /// True if there is nothing to do. Neither this object nor a BackwardRun is needed, unless it follows.
  bool is_idle() const { return is_idle_; }
  /// True if tools see the backward operators that it creates itself. If it will create some, a BackwardRun is needed.
  bool follows() const { return follows_; }
  /// Runs the actions before the operator; `here`: of the calling thread. Throws what a tool threw.
  void before(ThreadCalls& here, OpCall& call) const;

 private:
  ScopeStack& scopes_;
  const PlanPtr forward_;  // keeps the plan alive
  const Plan* plan_ = nullptr;
  bool is_idle_ = false;
  bool follows_ = false;
};

/// A backward operator that the framework runs, with calls at its beginning and end: the stages of Engine::on_op().
class BackwardRun : NoCopy {
 public:
  /// Begins the run, on the thread that executes the backward operator. `scopes` and `call` must outlive this object.
  BackwardRun(ScopeStack& scopes, OpCall& call);
  ~BackwardRun();

  /// True if an active tool sees the operator. If not, the other functions do nothing.
  bool seen() const;
  /// Runs the analyses, and the actions before the operator. Throws what a tool threw.
  void before();
  /// After before(): true if operate() must run in place of the operator.
  bool replaces() const;
  /// After before(): true if finish() must be called.
  bool expects_end() const;
  /// After before(): true if tools see the backward operators that it creates itself.
  bool follows() const;
  /// Runs the replacement; call.run() runs the operator for it. Throws what a tool threw.
  void operate();
  /// Runs the actions after the operator. Call it when the operator, or operate(), has run: call.run() only hands over
  /// the results. Throws what a tool threw.
  void finish();

 private:
  std::unique_ptr<struct PooledOpRun> run_;  // null if no tool sees the operator
  OpCall& call_;
  bool operated_ = false;
};

}  // namespace amanda
