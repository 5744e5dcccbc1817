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
#include "amanda/description.h"
#include "amanda/routine.h"

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

struct BeforeOp {
  Positions inputs{};
  bool differentiable = false;  // record the routine; the value's own graph is kept
  bool allow_view = false;      // the result may stop being a view of the program's operand
  RoutineKind kind = RoutineKind::kUnknown;
};

struct AfterOp {
  Positions outputs{};
  bool differentiable = false;
  bool allow_view = false;  // the result may stop being a view
  RoutineKind kind = RoutineKind::kUnknown;
};

struct ReplaceOp {
  Positions inputs{};
  bool allow_view = false;
  RoutineKind kind = RoutineKind::kUnknown;
};

struct BeforeBackwardOp {
  Positions grad_outputs{};
  bool differentiable = false;
  RoutineKind kind = RoutineKind::kUnknown;
};

struct AfterBackwardOp {
  Positions grad_inputs{};
  bool differentiable = false;
  RoutineKind kind = RoutineKind::kUnknown;
};

struct ReplaceBackwardOp {
  Positions grad_outputs{};
  RoutineKind kind = RoutineKind::kUnknown;
};

/// A scheduled routine. A handle: copies name the same action.
class Action {
 public:
  Action() = default;
  explicit Action(std::shared_ptr<ScheduledAction> scheduled) : scheduled_(std::move(scheduled)) {}

  /// Takes it out, from the operator's next run on; on any thread, any number of times.
  void remove();
  bool removed() const;

  /// What was scheduled, and where. On any thread, also after the scope and the tool are gone. Throws `Error` if this
  /// is no action (a default-constructed handle).
  ActionDescription describe() const;

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

  /// Replacements only: the results, all of which must be set, unless call_original() ran.
  size_t num_results() const;
  Value result(size_t i) const;
  void set_result(size_t i, Value value);
  /// Replacements only: runs what this one wraps (another tool's replacement, or the operator) on the current inputs.
  void call_original();

  /// Shared by a tool's routines of one execution; made at first use, gone when the operator returns or throws.
  template <class T>
  T& run() {
    std::any& slot = run_slot();
    if (!slot.has_value()) slot.emplace<std::shared_ptr<T>>(std::make_shared<T>());
    return *std::any_cast<std::shared_ptr<T>&>(slot);
  }

  Point point() const;
  const Tool& tool() const;
  const OpInfo& op() const;  // the backward operator's, if it is one that runs
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
