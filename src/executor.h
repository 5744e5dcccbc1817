// Runs a plan around one execution of an operator.
#pragma once

#include "amanda/base/no_copy.h"
#include "amanda/driver/graph.h"
#include "plan.h"

namespace amanda {

/// The scopes that a tap runs for.
class RunningScopes {
 public:
  virtual bool contains(const ScopeState* scope) const = 0;

 protected:
  ~RunningScopes() = default;
};

class Execution : NoCopy {
 public:
  explicit Execution(OpCall& call) : call_(call) {}
  /// The execution of a tap: only actions of these scopes run. `state` is shared with other taps of the operator, or
  /// null.
  Execution(OpCall& call, const RunningScopes* scopes, RunState* state)
      : call_(call), local_(RunStatePtr(), state), scopes_(scopes), counts_(state != nullptr) {}

  void run_before(const Plan& plan) {
    if (!plan.at(Point::kBefore).empty()) run_point(plan, Point::kBefore);
  }
  /// The original, or the plan's outermost replacement.
  void run_operator(const Plan& plan, bool observe_inner) {
    hints_ = {.observe_inner = observe_inner,
              .keep_inputs = plan.after_pending(),
              .edit_result = plan.edits_result(),
              .keep_run_inputs = plan.shows_inputs()};
    if (plan.replacements().empty()) return call_.run(hints_);
    run_wrapped(plan, plan.replacements().size(), call_, hints_);
  }
  void run_after(const Plan& plan) {
    if (plan.at(Point::kAfter).empty()) return;
    if (plan.shows_inputs()) call_.show_run_inputs();
    run_point(plan, Point::kAfter);
  }

  /// The steps that follow the operator in any case.
  void run_last(const Plan& plan) {
    try {
      run_after(plan);
      call_.finish();
    } catch (const std::exception&) {
      settle();
      throw;
    }
    settle();
  }

  /// Runs the operator that the replacement at `index` wraps: the next inner replacement that still runs, or the
  /// original. `call` is this execution's, or one made by get_op()().
  void run_wrapped(const Plan& plan, size_t index, OpCall& call, RunHints hints);

  /// The objects that this operator's routines share; made when first asked for.
  const RunStatePtr& local_state();
  /// The objects that they share with the routines of the forward operator, or of the backward ones.
  const RunStatePtr& run_state();
  /// Counts this execution for the action's scope, if it is a forward operator's and was not counted yet.
  void count(const ScheduledAction& action);
  /// Counts an execution of a forward operator for all scopes for which it was not counted yet.
  static void count(RunState& state, const ScopeStack& scopes, OpSite& forward);
  /// For a forward operator: its routines' objects are to live on with its backward operators.
  const RunStatePtr& keep_run(const ScopeStack& scopes);
  /// True if routines share something that lasts until the operator ends, or longer.
  bool has_state() const { return local_ || run_; }
  /// True if the results are the original's, rather than those of a replacement or of a routine after it.
  bool has_own_results() const { return !replaced_; }
  static const Execution& of(const Values& values);
  /// Called at the end: settles the objects that a graph keeps.
  void settle() {
    if (kept_) settle_kept();
  }

 private:
  friend class Values;
  bool runs(const ScheduledAction& action) const;
  void run_point(const Plan& plan, Point point);
  void run_action(const ScheduledAction& action);
  /// Called in an exception handler, when the routine threw. Throws, too, unless the program continues.
  void handle_failure(const ScheduledAction& action);
  /// True if the program continues after this error of a routine.
  bool survives(const ScheduledAction& action, const std::exception_ptr& error) const;
  void run_replacement(const Plan& plan, size_t index, OpCall& call);
  void settle_kept();

  OpCall& call_;
  RunHints hints_;
  bool replaced_ = false;         // some result, by a tool
  bool operator_failed_ = false;  // the original threw: an exception of its replacement is then not a failure of a tool
  RunStatePtr local_, run_;       // null if not asked for yet
  const RunningScopes* scopes_ = nullptr;  // null if all scopes run
  bool counts_ = true;                     // true if this is known to be one execution
  bool kept_ = false;                      // a graph keeps run_
};

/// "tool: routine before aten::conv2d in encoder.0 (forward, model.py:12)".
std::string describe(const ScheduledAction& action, OpSite& site);

/// The replacement that runs on this thread, so that the operator that it wraps can be found.
struct ReplacementFrame {
  ReplacementFrame(Execution& execution, const Plan& plan, size_t index, OpCall& call);
  ~ReplacementFrame();
  static ReplacementFrame* current();

  Execution& execution;
  const Plan& plan;
  size_t index;
  OpCall& call;
  bool produced = false;  // call_original() has produced the results
  uint64_t written = 0;   // the undeclared change of versions(kReplace) by get_op()() itself
  ReplacementFrame* outer;
};

}  // namespace amanda
