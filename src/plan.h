// The actions of one operator: immutable, merged from the actions that the scopes' analyses scheduled.
#pragma once

#include <atomic>
#include <vector>

#include "backward_places.h"
#include "scheduled_action.h"

namespace amanda {

class Plan {
 public:
  /// Properties of a plan in addition to its actions.
  struct Outlook {
    bool after_pending = false;  // a require_outputs analysis still has to run
    SubscriptionPtr backward;    // of a forward operator: the tools that may see its backward operators, or null
    bool follows = false;        // of a backward operator: an analysis also asks for those that it creates itself
  };
  /// `actions` in the order of tools and of scheduling. Throws `Error` naming the tools if two of them replace the
  /// operator and neither depends on the other.
  Plan(std::vector<ScheduledPtr> actions, Outlook outlook, OpSite& site);

  const std::vector<ScheduledPtr>& at(Point point) const { return actions_[static_cast<size_t>(point)]; }
  /// Innermost first: each wraps the one before it. Same as at(kReplace).
  const std::vector<ScheduledPtr>& replacements() const { return at(Point::kReplace); }
  bool after_pending() const { return outlook_.after_pending; }
  bool follows() const { return outlook_.follows; }
  const SubscriptionPtr& backward() const { return outlook_.backward; }
  bool does_nothing() const { return does_nothing_; }  // on this operator itself
  bool ends_before() const { return ends_before_; }    // no action replaces the forward operator or runs after it
  /// The OpCall::gradient_mask() of a run in which all backward operators were already analyzed. 0 if there is none
  /// yet.
  uint64_t analysed_mask() const { return analysed_mask_.load(std::memory_order_relaxed); }
  void set_analysed_mask(uint64_t mask) const { analysed_mask_.store(mask, std::memory_order_relaxed); }
  Edit edits_result() const {
    if (!at(Point::kAfter).empty()) return edits_after();
    return outlook_.after_pending ? Edit::kUnknown : Edit::kNo;
  }
  bool shows_inputs() const { return shows_inputs_; }  // to actions after the operator
  bool uses_run() const { return uses_run_; }
  /// The places of a forward operator's backward operators.
  KnownBackwardPlaces& backward_places() const { return backward_places_; }

 private:
  Edit edits_after() const;

  std::vector<ScheduledPtr> actions_[3];
  Outlook outlook_;
  bool does_nothing_, ends_before_;
  bool shows_inputs_ = false, uses_run_ = false;
  mutable std::atomic<uint64_t> analysed_mask_{0};
  mutable KnownBackwardPlaces backward_places_;
};

}  // namespace amanda
