// Runs a plan around one execution of an operator.
#pragma once

#include <any>
#include <vector>

#include "plan.h"

namespace amanda {

class Execution {
 public:
  explicit Execution(OpCall& call) : call_(call) {}
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  void run_before(const Plan& plan) { run_point(plan, Point::kBefore); }
  /// The original, or the plan's outermost replacement.
  void run_operator(const Plan& plan, bool observe_inner);
  void run_after(const Plan& plan) { run_point(plan, Point::kAfter); }

  /// A replacement of `plan`, on `call`: this execution's, or one made by get_op()().
  void run_replacement(const Plan& plan, size_t index, OpCall& call);
  std::any& run_slot(const Tool& tool);

 private:
  friend class Values;
  void run_point(const Plan& plan, Point point);
  void run_action(const ScheduledAction& action, Point point);

  OpCall& call_;
  RunHints hints_;
  std::vector<std::pair<const Tool*, std::any>> run_slots_;
};

/// The replacement that runs on this thread, so that what it wraps can be found.
struct ReplacementFrame {
  ReplacementFrame(Execution& execution, const Plan& plan, size_t index, OpCall& call);
  ~ReplacementFrame();
  static ReplacementFrame* current();

  Execution& execution;
  const Plan& plan;
  size_t index;
  OpCall& call;
  bool produced = false;  // the results are there: by call_original()
  ReplacementFrame* outer;
};

}  // namespace amanda
