// Actions: what analysis schedules, and what the scheduled routine is given when the operator runs.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>
#include <variant>
#include <vector>

#include "amanda/backend.h"
#include "amanda/routine.h"
#include "amanda/run_state.h"

namespace amanda {

class Execution;
class Tool;
class Values;
struct ScheduledAction;

/// Which operands a routine gets: all, none, or some by position or by schema name.
class Positions {
 public:
  Positions() = default;                                                         // all
  Positions(std::initializer_list<std::variant<int64_t, std::string>> selected)  // {1}, {"weight"}
      : selected_(std::in_place, selected) {}
  static Positions none() { return Positions(std::vector<std::variant<int64_t, std::string>>{}); }
  explicit Positions(std::vector<std::variant<int64_t, std::string>> selected) : selected_(std::move(selected)) {}

  const std::optional<std::vector<std::variant<int64_t, std::string>>>& selected() const { return selected_; }

 private:
  std::optional<std::vector<std::variant<int64_t, std::string>>> selected_;
};

// `with_run`: it may ask for Values::run(). Say false of a backward operator's routine that does not, and nothing is
// kept for it from the forward pass on.

struct BeforeOp {
  Positions inputs{};
  bool differentiable = false;  // record the routine; the value's own graph is kept
  bool allow_view = false;      // the result may stop being a view of the program's operand
  RoutineKind kind = RoutineKind::kUnknown;
  bool with_run = true;
};

struct AfterOp {
  Positions outputs{};
  bool differentiable = false;
  bool allow_view = false;  // the result may stop being a view
  RoutineKind kind = RoutineKind::kUnknown;
  Positions inputs = Positions::none();  // to look at: Values::input()
  bool with_run = true;
};

struct ReplaceOp {
  Positions inputs{};
  bool allow_view = false;
  RoutineKind kind = RoutineKind::kUnknown;
  bool with_run = true;
};

struct BeforeBackwardOp {
  Positions grad_outputs{};
  bool differentiable = false;
  RoutineKind kind = RoutineKind::kUnknown;
  bool with_run = true;
};

struct AfterBackwardOp {
  Positions grad_inputs{};
  bool differentiable = false;
  RoutineKind kind = RoutineKind::kUnknown;
  Positions grad_outputs = Positions::none();  // to look at: Values::input()
  bool with_run = true;
};

struct ReplaceBackwardOp {
  Positions grad_outputs{};
  RoutineKind kind = RoutineKind::kUnknown;
  bool with_run = true;
};

/// A scheduled routine. A handle: copies name the same action.
class Action {
 public:
  Action() = default;
  explicit Action(std::shared_ptr<ScheduledAction> scheduled) : scheduled_(std::move(scheduled)) {}

  /// Takes it out, from the operator's next run on; on any thread, any number of times.
  void remove();
  bool removed() const;

 private:
  std::shared_ptr<ScheduledAction> scheduled_;
};

/// What a routine works on: the selected operands of one execution.
class Values {
 public:
  Values(Execution& execution, OpCall& call, const ScheduledAction& action, size_t replacement = 0);

  size_t size() const;
  size_t position(size_t i) const;  // in the schema
  Value operator[](size_t i) const;
  /// For bindings that read operands from call(): a routine must not change, in place, what it gets from now on.
  void watch() const;
  /// Puts another value in place of the i-th selected operand, once the routine has returned.
  /// Throws `Error` naming tool, operator and position if type, dtype or device differ.
  void set(size_t i, Value value);

  /// After the operator only: what it was given, at the positions selected by `AfterOp::inputs`, or by
  /// `AfterBackwardOp::grad_outputs`. To look at. Inputs that the operator writes to are changed already.
  /// input() throws `std::out_of_range` from num_inputs() on.
  size_t num_inputs() const;
  size_t input_position(size_t i) const;  // in the schema
  Value input(size_t i) const;

  /// Replacements only: the results, all of which must be set, unless call_original() ran.
  size_t num_results() const;
  Value result(size_t i) const;
  void set_result(size_t i, Value value);
  /// Replacements only: runs what this one wraps (another tool's replacement, or the operator) on the current inputs.
  void call_original();

  /// Shared by a tool's routines of one execution, those of its backward operators included: one `T` for each type,
  /// made when first asked for. It goes with the graph that has these backward operators, or, if no routine of theirs
  /// may ask for it, when the operator returns or throws. Backward operators may run on several threads at once.
  ///
  /// A `T` that holds a result of the operator keeps its own graph alive: hold `detach()` of it.
  template <class T>
  T& run() {
    return slot<T>(run_state());
  }
  /// The same, shared only by the tool's routines around this operator, forward or backward, in one execution.
  template <class T>
  T& local() {
    return slot<T>(local_state());
  }
  /// The number of this execution of the forward operator, from 0 on since the tool's scope was entered: executions
  /// count in which a routine, of whatever tool of the scope, asked for run(), run_index() or could do so in backward.
  /// Empty: not known, as where a graph does not say which execution a backward operator belongs to.
  std::optional<uint64_t> run_index();

  Point point() const;
  const Tool& tool() const;
  const OpInfo& op() const;  // the backward operator's, if it is one that runs
  OpCall& call() const { return call_; }
  /// Throws `Error`: "[action] <tool>: <routine> <point> <operator>: <what>".
  [[noreturn]] void fail(const std::string& what) const;

 private:
  friend class Execution;
  template <class T>
  T& slot(RunState& state) {
    RunSlot& slot = state.slot(tool(), typeid(T), [] { return static_cast<RunSlot*>(new RunSlotOf<T>); });
    return static_cast<RunSlotOf<T>&>(slot).value;
  }
  RunState& run_state();
  RunState& local_state();
  uint64_t versions() const;
  void check_unchanged() const;

  Execution& execution_;
  OpCall& call_;
  const ScheduledAction& action_;
  size_t replacement_;                        // index in the plan's chain
  mutable std::optional<uint64_t> versions_;  // of the operands, inputs that are shown included, since it got the first
};

}  // namespace amanda
