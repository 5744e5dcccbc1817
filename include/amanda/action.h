// Actions: what analysis schedules, and what the scheduled routine is given when the operator runs.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeindex>
#include <variant>
#include <vector>

#include "amanda/description.h"
#include "amanda/op.h"
#include "amanda/routine.h"
#include "amanda/run_state.h"
#include "amanda/value.h"

namespace amanda {

class Execution;
class Tool;
class Values;
struct ScheduledAction;

/// Selects operands by position or by schema name.
class Positions {
 public:
  /// Leaves the selection to the method: what the routine gets is all, what it is shown in addition is none.
  Positions() = default;
  /// Selects some: `{1}`, `{"weight"}`. They are checked when an action is scheduled with them.
  Positions(std::initializer_list<std::variant<int64_t, std::string>> selected)
      : selected_(std::in_place, selected), is_given_(true) {}
  /// Selects these positions and names; an empty vector selects none.
  explicit Positions(std::vector<std::variant<int64_t, std::string>> selected)
      : selected_(std::move(selected)), is_given_(true) {}
  /// Selects all operands.
  static Positions all() {
    Positions positions;
    positions.is_given_ = true;
    return positions;
  }
  /// Selects no operand: the routine is called without values.
  static Positions none() { return Positions(std::vector<std::variant<int64_t, std::string>>{}); }

  /// True if something was selected, be it all or none.
  bool is_given() const { return is_given_; }
  /// The selected positions and names; empty if all operands are selected.
  const std::optional<std::vector<std::variant<int64_t, std::string>>>& selected() const { return selected_; }

 private:
  std::optional<std::vector<std::variant<int64_t, std::string>>> selected_;
  bool is_given_ = false;
};

/// How a routine is scheduled, for the six methods of OpContext.
struct ActionOptions {
  /// After the operator: the outputs that the routine gets.
  Positions outputs{};
  /// After the backward operator: the computed gradients that the routine gets.
  Positions grad_inputs{};
  /// Before and instead of the operator: the inputs that the routine gets. After it: the inputs that it is shown in
  /// addition, see Values::input().
  Positions inputs{};
  /// Before and instead of the backward operator: the incoming gradients that the routine gets. After it: those that it
  /// is shown in addition, see Values::input().
  Positions grad_outputs{};
  /// Gradients flow through the routine: it is recorded as part of the program; on a backward operator, for higher
  /// derivatives. Not for replacements, which always are.
  bool differentiable = false;
  /// Before and after the operator, where a result is a view of an input: an edit may end the sharing of memory between
  /// the two. Instead of the operator: the result need not be a view where the operator's is.
  bool allow_view = false;
  RoutineKind kind = RoutineKind::kUnknown;  ///< what the routine does with its values
  /// True if it may call Values::run(). If a backward operator's routine does not, nothing is kept for it.
  bool with_run = true;
  /// True if it may call the framework's operators. If not, it is called faster, in the program's own thread state:
  /// grad mode, autocast and other modes. No tool sees an operator that it calls after all, but autograd may record it.
  /// Needs `RoutineKind::kObserve`, and not `differentiable`. Not for replacements.
  bool with_operators = true;
};

/// For bindings: a method of OpContext that schedules a routine.
struct ScheduleMethod {
  const char* name;  ///< "insert_after_op"
  Phase phase;       ///< of the operator
  Point point;       ///< where the routine runs
  /// A selection of operands.
  struct Selection {
    const char* name;                  ///< "outputs"; null if the method has none
    Positions ActionOptions::*option;  ///< the option of that name
  };
  Selection gets;   ///< what the routine gets
  Selection shown;  ///< what it is shown in addition
};
/// All six. Throws `std::out_of_range` for another name.
const ScheduleMethod& schedule_method(std::string_view name);

/// A scheduled routine. A handle: copies name the same action. It does not keep the scope alive.
class Action {
 public:
  /// No action: remove() does nothing.
  Action() = default;
  /// For the core: a handle on `scheduled`.
  explicit Action(std::shared_ptr<ScheduledAction> scheduled) : scheduled_(std::move(scheduled)) {}

  /// Removes the action, from the operator's next run on. On any thread, any number of times.
  void remove();
  /// True if it was removed. On any thread.
  bool removed() const;

  /// Describes the routine and its place. On any thread, also after the scope and the tool are gone. Throws `Error` if
  /// this is no action (a default-constructed handle).
  ActionDescription describe() const;

 private:
  std::shared_ptr<ScheduledAction> scheduled_;
};

/// The selected operands of one execution, on which a routine works.
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

  /// After the operator only: the number of inputs that it is shown in addition to the results, selected by
  /// `ActionOptions::inputs`, or by `ActionOptions::grad_outputs` for a backward operator.
  size_t num_inputs() const;
  /// The position of the i-th of these in the schema.
  size_t input_position(size_t i) const;
  /// The i-th of these, borrowed: what the operator ran on. Operands that the operator writes to have changed by now.
  /// Throws `std::out_of_range` for an `i` that is not below num_inputs().
  Value input(size_t i) const;

  /// Replacements only: how many results the operator has. A replacement sets all of them, unless call_original() ran.
  size_t num_results() const;
  /// Replacements only: the i-th result of call_original(). Throws `Error` before that ran.
  Value result(size_t i) const;
  /// Replacements only: sets the i-th result. Throws `Error` as set() does.
  void set_result(size_t i, Value value);
  /// Replacements only: runs what this one wraps (another tool's replacement, or the operator) on the current inputs,
  /// and makes its results this routine's. Throws what that throws, and `Error` if it is called twice.
  void call_original();

  /// An object that a tool's routines of one execution share, those of its backward operators included: one object for
  /// each type, created at the first use. It lives as long as the graph of that execution; if no routine of a backward
  /// operator may ask for it, it is destroyed when the operator returns or throws. Backward operators may run on
  /// several threads at once.
  ///
  /// An object that holds a result of the operator keeps the graph alive that it lives in: hold `detach()` of it.
  template <class T>
  T& run() {
    return slot<T>(run_state());
  }
  /// The same, shared only by the routines around this operator, forward or backward. It is destroyed when the operator
  /// returns or throws.
  template <class T>
  T& local() {
    return slot<T>(local_state());
  }
  /// The number of this execution among those of the forward operator, from 0 on since the tool's scope was entered. An
  /// execution counts if a routine of the scope asks for run(), or may ask in a backward operator. Empty if it is not
  /// known, as in a graph that does not show to which execution a backward operator belongs.
  std::optional<uint64_t> run_index();

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
  /// For messages, and slow: "<routine> before aten::relu in encoder.0 (forward, model.py:12)".
  std::string where() const;
  /// For messages: the i-th selected operand, as "input 1 (weight)".
  std::string operand(size_t i) const;

 private:
  friend class Execution;
  template <class T>
  T& slot(RunState& state) {
    RunSlot& slot = state.slot(tool(), typeid(T), [] { return static_cast<RunSlot*>(new RunSlotOf<T>); });
    return static_cast<RunSlotOf<T>&>(slot).value;
  }
  RunState& run_state();
  RunState& local_state();
  std::pair<uint64_t, uint64_t> versions() const;  // of the operands, and of the inputs that are shown in addition
  void check_unchanged() const;

  Execution& execution_;
  OpCall& call_;
  const ScheduledAction& action_;
  size_t replacement_;                                             // index in the plan's chain
  mutable std::optional<std::pair<uint64_t, uint64_t>> versions_;  // since it got the first
};

}  // namespace amanda
