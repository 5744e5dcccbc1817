// OpContext: one operator, as an analysis routine gets it, with the methods that schedule actions on it.
#pragma once

#include <any>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "amanda/action.h"
#include "amanda/op.h"
#include "amanda/tool.h"

namespace amanda {

struct ContextSession;  ///< what is known during one analysis call
struct Record;
class ScopeState;

/// A language binding's companion of a context, for instance the Python dict that users see.
class ContextFace {
 public:
  virtual ~ContextFace() = default;
  /// A copy with the same keys, for the context of an inner scope.
  virtual std::unique_ptr<ContextFace> copy_keys(OpContext& owner) const = 0;
  /// True if it holds a key. Must not block.
  virtual bool has_keys() const = 0;
};

/// One operator, as an analysis routine gets it. There is one per operator and scope, shared by the scope's tools;
/// it lives as long as the scope.
///
/// Identity (op() to is_backward(), and keys) may be read as long as the context lives; everything else only during the
/// analysis call, on its thread: outside, those functions throw `Error`. In a backward context, op(), type() and
/// op_id() are the forward operator's.
///
/// Actions: the functions insert_*() and replace_*() schedule a routine. It runs in every run of the operator, on the
/// thread that runs it, so perhaps on several threads at once. Operators that it calls are not observed. Its exceptions
/// reach the program, unless the scope's `on_error` stops the tool instead. These functions throw `Error` outside an
/// analysis, or with a reason if the framework cannot do it; and `std::invalid_argument` if the operator does not have
/// a selected position.
///
/// The functions *_backward_op() schedule on a backward operator: in its own analysis; or in the forward operator's,
/// for each backward operator that it creates and that has the selected positions. Their routines run on the backward
/// pass's thread, often not the one that ran the forward operator. In a forward analysis they throw `Error` if the
/// framework has no backward operators or this operator has no id, and `std::invalid_argument` for a position that is a
/// name.
class OpContext {
 public:
  /// For the core.
  OpContext() = default;
  OpContext(const OpContext&) = delete;
  OpContext& operator=(const OpContext&) = delete;

  /// Describes the (forward) operator's type.
  const OpInfo& op() const { return *info_; }
  /// The (forward) operator's type, as the driver numbers it.
  OpType type() const { return type_; }
  /// The (forward) operator's id: its place in the program, stable across runs. 0: not identified.
  OpId op_id() const { return id_; }
  /// The driver.
  Backend& backend() const { return *backend_; }
  /// Describes the backward operator's type; null in a forward context.
  const OpInfo* backward_op() const { return backward_info_; }
  /// The backward operator's type; 0 in a forward context.
  OpType backward_type() const { return backward_type_; }
  /// The backward operator's id; 0 in a forward context.
  OpId backward_op_id() const { return backward_id_; }
  /// The driver's name: "pytorch/2.13/eager".
  std::string name_space() const;

  /// True for the context of a forward operator.
  bool is_forward() const { return !is_backward(); }
  /// True for the context of a backward operator.
  bool is_backward() const { return backward_info_ != nullptr; }
  /// The tool whose analysis is running.
  const Tool& tool() const;
  /// The path of the innermost module: "encoder.layer.3.attention"; "" outside modules. In a program without Python see
  /// amanda::pytorch::ModuleNames.
  std::string module_path() const;
  /// "file:line" of the user's call; "" if unknown.
  std::string source() const;
  /// True if a checkpoint is recomputing the operator.
  bool is_recompute() const;
  /// True if this driver's operators are analyzed before their operands have values.
  bool is_symbolic() const;
  /// How many operators that the tool also sees are around this one.
  size_t depth() const;
  /// For messages: "aten::relu in encoder.0 (forward, model.py:12)". A backward operator is where its forward one is:
  /// "ReluBackward0 of aten::relu in encoder.0 (backward of model.py:12)".
  std::string where() const;

  /// How many inputs the (forward) operator has.
  size_t num_inputs() const;
  /// An input of the (forward) operator, borrowed; null for None, and in a backward context if it is no longer alive.
  Value input(size_t position) const;
  /// The name in its model of the parameter or buffer at this position: "encoder.0.weight". "" if it is not one of a
  /// known model; without Python, of one that has amanda::pytorch::ModuleNames. May search all models.
  std::string parameter_name(size_t position) const;
  /// The same for each tensor of a list; empty if the input is not a list of tensors.
  std::vector<std::string> parameter_names(size_t position) const;
  /// True if outputs exist: in a `require_outputs` analysis, in every backward one, and as symbols of a graph.
  bool has_outputs() const;
  /// How many outputs the (forward) operator has.
  size_t num_outputs() const;
  /// An output of the (forward) operator, as input(). Throws `Error` if there are none yet.
  Value output(size_t position) const;
  /// An attribute of the (forward) operator: what is fixed when a graph is built and is no operand, as text: "NHWC".
  /// "" if there is no such attribute.
  std::string attribute(std::string_view name) const;
  /// An attribute of the backward operator; "" in a forward context.
  std::string backward_attribute(std::string_view name) const;
  /// How many incoming gradients the backward operator has. Its positions are the framework's own.
  size_t num_grad_outputs() const;
  /// An incoming gradient, borrowed; null or None if it is undefined.
  Value grad_output(size_t position) const;
  /// True if computed gradients exist: in a `require_outputs` analysis of a backward operator, and as symbols of a
  /// graph.
  bool has_grad_inputs() const;
  /// How many gradients the backward operator computes.
  size_t num_grad_inputs() const;
  /// A computed gradient, as grad_output(). Throws `Error` if there are none yet.
  Value grad_input(size_t position) const;
  /// For typed access by drivers and bindings: the site being analyzed.
  OpSite& site() const;

  /// Leaves a key for the scope's other tools. Keys of type bool, int64_t, double, std::string and vectors of these are
  /// shared with Python.
  template <class T>
  void set(const std::string& key, T value) {
    keys_[key] = std::any(std::move(value));
  }
  /// A key that a tool has left; null if there is none, or it has another type.
  template <class T>
  const T* get(const std::string& key) const {
    auto found = keys_.find(key);
    return found == keys_.end() ? nullptr : std::any_cast<T>(&found->second);
  }
  /// For bindings: all keys.
  std::map<std::string, std::any>& keys() { return keys_; }
  /// For bindings: all keys.
  const std::map<std::string, std::any>& keys() const { return keys_; }

  /// Runs `routine` just before the operator, on the selected inputs. It may replace them.
  ///
  /// Throws `Error` in a backward analysis: the forward operator has run.
  Action insert_before_op(std::function<void(Values&)> routine, ActionOptions options = {});
  /// The same, with a named routine that may keep state. The scope shares it.
  Action insert_before_op(RoutinePtr routine, ActionOptions options = {});

  /// Runs `routine` just after the operator, on the selected outputs. It may replace them.
  ///
  /// It can be shown inputs, too: `options.inputs`. It does not run if the operator throws. Throws `Error` in a
  /// backward analysis, and for inputs where the framework gives the results alone.
  Action insert_after_op(std::function<void(Values&)> routine, ActionOptions options = {});
  /// The same, with a named routine.
  Action insert_after_op(RoutinePtr routine, ActionOptions options = {});

  /// Runs `routine` instead of the operator, on the selected inputs. It must set all results, or call the original.
  ///
  /// A replacement that was scheduled earlier, by any tool, becomes the original of this one. Throws `Error` in a
  /// backward analysis, and for an operator that cannot be replaced.
  Action replace_op(std::function<void(Values&)> routine, ActionOptions options = {});
  /// The same, with a named routine.
  Action replace_op(RoutinePtr routine, ActionOptions options = {});

  /// Runs `routine` just before the backward operator, on the selected incoming gradients. It may replace them.
  Action insert_before_backward_op(std::function<void(Values&)> routine, ActionOptions options = {});
  /// The same, with a named routine.
  Action insert_before_backward_op(RoutinePtr routine, ActionOptions options = {});

  /// Runs `routine` just after the backward operator, on the selected gradients that it computed. It may replace them.
  /// It can be shown the incoming ones, too: `options.grad_outputs`.
  Action insert_after_backward_op(std::function<void(Values&)> routine, ActionOptions options = {});
  /// The same, with a named routine.
  Action insert_after_backward_op(RoutinePtr routine, ActionOptions options = {});

  /// Runs `routine` instead of the backward operator, on the selected incoming gradients. It must set all gradients
  /// that the operator would compute, or call the original.
  ///
  /// Throws `Error` for one that cannot be replaced, such as that of a leaf.
  Action replace_backward_op(std::function<void(Values&)> routine, ActionOptions options = {});
  /// The same, with a named routine.
  Action replace_backward_op(RoutinePtr routine, ActionOptions options = {});

  /// For bindings: what all of the above do. Throws `std::invalid_argument` if `options` selects operands that the
  /// method does not have, such as outputs before an operator.
  Action schedule(const ScheduleMethod& method, RoutinePtr routine, const ActionOptions& options);

  /// Allows the routines that this analysis schedules from here on to change their operands in place.
  void may_mutate();

  /// The actions that the scope's tools have scheduled so far on this operator and on its backward operators, in the
  /// order in which they run, without removed ones. Also outside an analysis, on any thread, as long as the context
  /// lives.
  std::vector<ActionDescription> actions() const;

  /// For bindings: keeps the context alive while it is read, on any thread.
  std::weak_ptr<OpContext> weak() const { return self_; }
  /// For bindings: the companion; null if there is none.
  std::unique_ptr<ContextFace>& face() { return face_; }
  /// For bindings: the companion; null if there is none.
  const std::unique_ptr<ContextFace>& face() const { return face_; }

 private:
  friend class AnalysisSession;
  ContextSession& session(const char* asked) const;
  std::shared_ptr<const OpPlace> place() const;

  /// The thread whose analysis runs. Only that thread reads session_: on any other, the analysis may end at any time.
  std::atomic<std::thread::id> analyst_{};
  ContextSession* session_ = nullptr;
  std::weak_ptr<OpContext> self_;  // of the record, which owns this
  std::weak_ptr<ScopeState> scope_;
  const Record* record_ = nullptr;
  Backend* backend_ = nullptr;
  const OpInfo* info_ = nullptr;
  const OpInfo* backward_info_ = nullptr;
  OpType type_ = 0, backward_type_ = 0;
  OpId id_ = 0, backward_id_ = 0;
  std::map<std::string, std::any> keys_;
  std::unique_ptr<ContextFace> face_;
};

}  // namespace amanda
