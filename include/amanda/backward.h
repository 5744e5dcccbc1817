// The seam, backward half: what a driver asks about backward operators that the framework creates and runs itself.
#pragma once

#include <memory>
#include <vector>

#include "amanda/backend.h"

namespace amanda {

/// What must be installed around a backward operator that was just created.
struct HookNeeds {
  bool before = false, replace = false, after = false;
  bool follow = false;   // tools also see the backward operators that it creates itself (double backward)
  bool pending = false;  // an analysis has still to run, and may schedule anything
  bool run = false;      // a routine may ask for what it shares with the forward operator's: see RunSource
  bool any() const { return before || replace || after || follow || pending; }
};

class Backward {
 public:
  static HookNeeds hook_needs(ScopeStack& scopes, OpSite& backward);
  /// The tools subscribed to the backward of a forward operator that bypassed Engine::on_op(); null: none.
  static SubscriptionPtr subscription(ScopeStack& scopes, OpSite& forward);
  /// `subscription` without the tools that are in `known`; null: none is left.
  static SubscriptionPtr without(const SubscriptionPtr& subscription, const std::vector<SubscriptionPtr>& known);
  /// Are all of its scopes gone?
  static bool is_over(const Subscription& subscription) noexcept;
};

/// A backward operator that the framework runs, with calls at its beginning and end: the stages of Engine::on_op().
class BackwardRun {
 public:
  BackwardRun(ScopeStack& scopes, OpCall& call);
  ~BackwardRun();
  BackwardRun(const BackwardRun&) = delete;
  BackwardRun& operator=(const BackwardRun&) = delete;

  bool seen() const;         // by a tool that is active
  void before();             // analyses, actions
  bool replaces() const;     // after before(): is operate() to run where the operator would?
  bool expects_end() const;  // after before(): is finish() needed?
  bool follows() const;      // after before(): do tools see the backward operators that it creates itself?
  /// Runs the replacement; call.run() runs the operator for it.
  void operate();
  /// The operator, or operate(), ran: call.run() only hands over the results.
  void finish();

 private:
  std::unique_ptr<class OpRun> run_;  // null: not seen
  OpCall& call_;
  bool operated_ = false;
};

}  // namespace amanda
