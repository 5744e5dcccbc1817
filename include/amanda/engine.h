// The seam, upward half: what a driver calls.
#pragma once

#include <cstddef>

#include "amanda/backend.h"

namespace amanda {

class Tool;

class Engine {
 public:
  /// Makes a framework known. Throws `Error` when the driver was built for another seam version.
  static void attach(Backend& backend, int seam_version = kSeamVersion);

  /// Eager: one operator call, top to bottom, forward or backward. See src/engine.cpp.
  static void on_op(ScopeStack& scopes, OpCall& call);

  /// What tools want of a backward operator that was just made.
  struct Interest {
    bool before = false, replace = false, after = false;
    bool follow = false;   // backward operators that it makes itself are to be seen, too
    bool pending = false;  // an analysis is still to be run, and may schedule anything
    bool any() const { return before || replace || after || follow || pending; }
  };
  static Interest interest(ScopeStack& scopes, OpSite& backward);
  /// Who is to see the backward operators of a forward operator that ran unseen by on_op(); null: nobody asks.
  static SightingPtr sighting(ScopeStack& scopes, OpSite& forward);
  /// `seen_by` without the tools that are in `known`; null: none is left.
  static SightingPtr without(const SightingPtr& seen_by, const std::vector<SightingPtr>& known);
  /// None of its scopes will be entered again.
  static bool is_over(const Sighting& seen_by) noexcept;

  /// Graph: analyses a node while the graph is visited and returns what to insert; runs no action.
  static PlanPtr analyse(ScopeStack& scopes, OpSite& site, Point point);
  /// Graph: runs the plan's actions of one point, from the tap that was inserted for them.
  static void run(const Plan& plan, Point point, OpCall& call);
  static bool has_actions(const Plan& plan, Point point) noexcept;

  /// This thread's open scopes, kept alive with their tools as long as the pointer lives; null: none, or switched off.
  static std::shared_ptr<ScopeStack> scopes_here();
  /// Those of another thread, to work with on its behalf; null: it has left them.
  static std::shared_ptr<ScopeStack> borrow(const std::weak_ptr<ScopeStack>& of_another_thread);
  /// Is this thread inside an operator, and nobody is to see what is inside it?
  static bool sees_nothing_inside(const ScopeStack& scopes) noexcept;

  /// Does any tool of these scopes ask for this operator type, nested or not?
  static bool wants(const ScopeStack& scopes, const Backend& backend, OpType type) noexcept;
  /// Does some tool ask for every type? Then filtering by type is not worth installing.
  static bool wants_all(const ScopeStack& scopes) noexcept;
  /// The patterns by which tools of these scopes ask for operators.
  static std::vector<std::string> patterns(const ScopeStack& scopes);

  // For reports, not for each call: of some tools.
  using Tools = std::vector<const Tool*>;  // only compared
  /// Is a call, that on_op() is about to be told of, shown to one of them?
  static bool shows(const ScopeStack& scopes, const OpSite& site, const Tools& tools);
  /// Does one that is active ask for this operator type, nested or not?
  static bool is_asked_for(const ScopeStack& scopes, const Backend& backend, OpType type, const Tools& tools);
  /// Does one that is active ask for backward operators?
  static bool asks_for_backward(const ScopeStack& scopes, const Tools& tools);

  /// Runs what `get_op()` stands for: inside a replacement, the replacement it wraps; else the original.
  static void call_original(OpCall& call);
};

/// A backward operator that the framework itself runs, with calls at its beginning and end: the stages of on_op().
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
  bool follows() const;      // after before(): are the backward operators that it makes itself to be seen, too?
  /// Runs the replacement; call.run() runs the operator for it.
  void operate();
  /// The operator, or operate(), ran: call.run() only hands over the results.
  void finish();

 private:
  // An OpRun, in room of its own: every node that is seen has one.
  alignas(std::max_align_t) std::byte room_[320];
  class OpRun* run_ = nullptr;
  OpCall& call_;
  bool operated_ = false;
};

}  // namespace amanda
