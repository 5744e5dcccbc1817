// The seam, backward half: what a driver asks about backward operators that the framework creates and runs itself.
#pragma once

#include <memory>
#include <vector>

#include "amanda/backend.h"

namespace amanda {

/// Which hooks a driver must install around a backward operator that was just created.
struct HookNeeds {
  bool before = false;   ///< actions or analyses before it
  bool replace = false;  ///< a replacement
  bool after = false;    ///< actions or analyses after it
  bool follow = false;   ///< tools also see the backward operators that it creates itself (double backward)
  bool pending = false;  ///< an analysis still has to run, and may schedule anything
  /// Is any hook needed?
  bool any() const { return before || replace || after || follow || pending; }
};

/// What a driver asks about backward operators. All functions may be called on any thread.
class Backward {
 public:
  /// Which hooks the backward operator needs under these scopes. Call it once, when the operator was created.
  static HookNeeds hook_needs(ScopeStack& scopes, OpSite& backward);
  /// The tools subscribed to the backward of a forward operator that bypassed Engine::on_op(); null: none.
  static SubscriptionPtr subscription(ScopeStack& scopes, OpSite& forward);
  /// `subscription` without the tools that are in `known`; null: none is left.
  static SubscriptionPtr without(const SubscriptionPtr& subscription, const std::vector<SubscriptionPtr>& known);
  /// Have all scopes of the subscription been destroyed?
  static bool is_over(const Subscription& subscription) noexcept;
};

/// A backward operator that the framework runs, with calls at its beginning and end: the stages of Engine::on_op().
class BackwardRun {
 public:
  /// Begins the run, on the thread that executes the backward operator. `scopes` and `call` must outlive this object.
  BackwardRun(ScopeStack& scopes, OpCall& call);
  ~BackwardRun();
  BackwardRun(const BackwardRun&) = delete;
  BackwardRun& operator=(const BackwardRun&) = delete;

  /// Does any active tool see the operator? If not, the other functions do nothing.
  bool seen() const;
  /// Runs the analyses, and the actions before the operator. Throws what a tool threw.
  void before();
  /// After before(): must operate() run in place of the operator?
  bool replaces() const;
  /// After before(): must finish() be called?
  bool expects_end() const;
  /// After before(): do tools see the backward operators that it creates itself?
  bool follows() const;
  /// Runs the replacement; call.run() runs the operator for it. Throws what a tool threw.
  void operate();
  /// Runs the actions after the operator. Call it when the operator, or operate(), has run: call.run() only hands over
  /// the results. Throws what a tool threw.
  void finish();

 private:
  std::unique_ptr<class OpRun> run_;  // null: not seen
  OpCall& call_;
  bool operated_ = false;
};

}  // namespace amanda
