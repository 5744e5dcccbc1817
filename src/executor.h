// Runs a plan around one execution of an operator.
#pragma once

#include <any>
#include <vector>

#include "amanda/graph.h"
#include "plan.h"

namespace amanda {

/// The scopes that a tap runs for.
class RunningScopes {
 public:
  virtual bool contains(const ScopeState* scope) const = 0;

 protected:
  ~RunningScopes() = default;
};

class Execution {
 public:
  explicit Execution(OpCall& call) : call_(call) {}
  /// Of a tap: only actions of these scopes run; `state`: shared with other taps of the operator, or null.
  Execution(OpCall& call, const RunningScopes* scopes, RunState* state) : call_(call), state_(state), scopes_(scopes) {}
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  void run_before(const Plan& plan) {
    if (!plan.at(Point::kBefore).empty()) run_point(plan, Point::kBefore);
  }
  /// The original, or the plan's outermost replacement.
  void run_operator(const Plan& plan, bool observe_inner);
  void run_after(const Plan& plan) {
    if (!plan.at(Point::kAfter).empty()) run_point(plan, Point::kAfter);
  }

  /// What the replacement at `index` wraps: the next inner replacement that still runs, or the original. On `call`:
  /// this execution's, or one made by get_op()().
  void run_wrapped(const Plan& plan, size_t index, OpCall& call, RunHints hints);
  std::any& run_slot(const Tool& tool);

 private:
  friend class Values;
  bool runs(const ScheduledAction& action) const;
  void run_point(const Plan& plan, Point point);
  void run_action(const ScheduledAction& action);
  /// Does the program continue after this error of a routine?
  bool survives(const ScheduledAction& action, const std::exception_ptr& error) const;
  void run_replacement(const Plan& plan, size_t index, OpCall& call);

  OpCall& call_;
  RunHints hints_;
  bool operator_failed_ = false;  // the original threw: an exception of its replacement is then not a failure of a tool
  std::vector<std::pair<const Tool*, std::any>> run_slots_;
  RunState* state_ = nullptr;              // null: the slots are its own
  const RunningScopes* scopes_ = nullptr;  // null: all
};

/// "tool: routine before aten::conv2d".
std::string describe(const ScheduledAction& action, const OpSite& site);

/// The replacement that runs on this thread, so that what it wraps can be found.
struct ReplacementFrame {
  ReplacementFrame(Execution& execution, const Plan& plan, size_t index, OpCall& call);
  ~ReplacementFrame();
  static ReplacementFrame* current();

  Execution& execution;
  const Plan& plan;
  size_t index;
  OpCall& call;
  bool produced = false;  // call_original() has produced the results
  uint64_t written = 0;   // how much get_op()() itself changed versions(kReplace), beyond what its type declares
  ReplacementFrame* outer;
};

}  // namespace amanda
