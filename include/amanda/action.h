// Actions: what analysis schedules, and what the scheduled routine is given when the operator runs.
#pragma once

#include <any>
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

namespace amanda {

class Execution;
class Tool;
class Values;
struct ScheduledAction;

/// Selects the operands that a routine gets: all, none, or some by position or by schema name.
class Positions {
 public:
  /// Selects all operands.
  Positions() = default;
  /// Selects some: `{1}`, `{"weight"}`. They are checked when an action is scheduled with them.
  Positions(std::initializer_list<std::variant<int64_t, std::string>> selected) : selected_(std::in_place, selected) {}
  /// Selects no operand: the routine is called without values.
  static Positions none() { return Positions(std::vector<std::variant<int64_t, std::string>>{}); }
  /// Selects these positions and names; an empty vector selects none.
  explicit Positions(std::vector<std::variant<int64_t, std::string>> selected) : selected_(std::move(selected)) {}

  /// What was selected; empty if all operands are.
  const std::optional<std::vector<std::variant<int64_t, std::string>>>& selected() const { return selected_; }

 private:
  std::optional<std::vector<std::variant<int64_t, std::string>>> selected_;
};

/// Options of OpContext::insert_before_op().
struct BeforeOp {
  Positions inputs{};           ///< the inputs that the routine gets
  bool differentiable = false;  ///< gradients flow through the routine: it is recorded as part of the program
  /// An edit may end the sharing of memory between this input and a result that is a view of it.
  bool allow_view = false;
  RoutineKind kind = RoutineKind::kUnknown;  ///< what the routine does with its values
};

/// Options of OpContext::insert_after_op().
struct AfterOp {
  Positions outputs{};          ///< the outputs that the routine gets
  bool differentiable = false;  ///< as BeforeOp's
  /// An edit may end the sharing of memory between the result, which is a view, and the operator's input.
  bool allow_view = false;
  RoutineKind kind = RoutineKind::kUnknown;  ///< what the routine does with its values
};

/// Options of OpContext::replace_op().
struct ReplaceOp {
  Positions inputs{};                        ///< the inputs that the routine gets
  bool allow_view = false;                   ///< the replacement's result need not be a view where the operator's is
  RoutineKind kind = RoutineKind::kUnknown;  ///< what the routine does with its values
};

/// Options of OpContext::insert_before_backward_op().
struct BeforeBackwardOp {
  Positions grad_outputs{};                  ///< the incoming gradients that the routine gets
  bool differentiable = false;               ///< higher derivatives flow through the routine
  RoutineKind kind = RoutineKind::kUnknown;  ///< what the routine does with its values
};

/// Options of OpContext::insert_after_backward_op().
struct AfterBackwardOp {
  Positions grad_inputs{};                   ///< the computed gradients that the routine gets
  bool differentiable = false;               ///< higher derivatives flow through the routine
  RoutineKind kind = RoutineKind::kUnknown;  ///< what the routine does with its values
};

/// Options of OpContext::replace_backward_op().
struct ReplaceBackwardOp {
  Positions grad_outputs{};                  ///< the incoming gradients that the routine gets
  RoutineKind kind = RoutineKind::kUnknown;  ///< what the routine does with its values
};

/// A scheduled routine. A handle: copies name the same action. It does not keep the scope alive.
class Action {
 public:
  /// No action: remove() does nothing.
  Action() = default;
  /// For the core: a handle on `scheduled`.
  explicit Action(std::shared_ptr<ScheduledAction> scheduled) : scheduled_(std::move(scheduled)) {}

  /// Removes the action, from the operator's next run on. On any thread, any number of times.
  void remove();
  /// Was it removed? On any thread.
  bool removed() const;

 private:
  std::shared_ptr<ScheduledAction> scheduled_;
};

/// What a routine works on: the selected operands of one execution.
///
/// Valid during the call of the routine, on its thread. Do not keep it, or the Values in it.
class Values {
 public:
  /// For the core.
  Values(Execution& execution, OpCall& call, const ScheduledAction& action, size_t replacement = 0);

  /// How many operands are selected.
  size_t size() const;
  /// The position of the i-th selected operand in the schema.
  size_t position(size_t i) const;
  /// The i-th selected operand, borrowed. The routine must not change it in place, unless its analysis called
  /// OpContext::may_mutate(); that is checked when it returns. Throws `std::out_of_range` for an `i` that is not below
  /// size(), if operands were selected.
  Value operator[](size_t i) const;
  /// For bindings that read operands from call(): from now on the routine must not change its operands in place.
  void watch() const;
  /// Replaces the i-th selected operand, once the routine has returned. The driver copies `value` before this returns.
  ///
  /// Throws `Error` naming tool, operator and position if type, dtype or device differ, or if the routine only
  /// observes.
  void set(size_t i, Value value);

  /// Replacements only: how many results the operator has. A replacement sets all of them, unless call_original() ran.
  size_t num_results() const;
  /// Replacements only: the i-th result of call_original(). Throws `Error` before that ran.
  Value result(size_t i) const;
  /// Replacements only: sets the i-th result. Throws `Error` as set() does.
  void set_result(size_t i, Value value);
  /// Replacements only: runs what this one wraps (another tool's replacement, or the operator) on the current inputs,
  /// and makes its results this routine's. Throws what that throws, and `Error` if it is called twice.
  void call_original();

  /// An object that a tool's routines of one execution share. It is created at the first use, and destroyed when the
  /// operator returns or throws.
  template <class T>
  T& run() {
    std::any& slot = run_slot();
    if (!slot.has_value()) slot.emplace<std::shared_ptr<T>>(std::make_shared<T>());
    return *std::any_cast<std::shared_ptr<T>&>(slot);
  }

  /// Where the routine runs: before, after or instead of the operator.
  Point point() const;
  /// The tool that scheduled the routine.
  const Tool& tool() const;
  /// The operator; in a routine on a backward operator, the backward operator.
  const OpInfo& op() const;
  /// For bindings and drivers: the driver's call.
  OpCall& call() const { return call_; }
  /// Throws `Error`: "[action] <tool>: <routine> <point> <operator>: <what>".
  [[noreturn]] void fail(const std::string& what) const;

 private:
  friend class Execution;
  std::any& run_slot();
  void check_unchanged() const;

  Execution& execution_;
  OpCall& call_;
  const ScheduledAction& action_;
  size_t replacement_;                        // index in the plan's chain
  mutable std::optional<uint64_t> versions_;  // of the operands, since the routine got the first
};

}  // namespace amanda
