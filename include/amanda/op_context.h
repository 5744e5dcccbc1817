// What an analysis routine is given: one operator, and the means to schedule actions on it.
#pragma once

#include <any>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "amanda/action.h"
#include "amanda/backend.h"
#include "amanda/tool.h"

namespace amanda {

struct ContextSession;  // what is known during one analysis call
struct Record;
class ScopeState;

/// A language binding's companion of a context, for instance the Python dict that users see.
class ContextFace {
 public:
  virtual ~ContextFace() = default;
  virtual std::unique_ptr<ContextFace> copy_keys(OpContext& owner) const = 0;  // for an inner scope's context
  virtual bool has_keys() const = 0;                                           // must not block
};

/// One per operator and scope, shared by the scope's tools; it lasts as long as the scope.
///
/// Operands are reachable during the analysis call only: outside, their accessors throw `Error`.
class OpContext {
 public:
  OpContext() = default;
  OpContext(const OpContext&) = delete;
  OpContext& operator=(const OpContext&) = delete;

  // These last as long as the context; all else only while its analysis runs. In a backward context they are the
  // forward operator's.
  const OpInfo& op() const { return *info_; }
  OpType type() const { return type_; }
  OpId op_id() const { return id_; }
  Backend& backend() const { return *backend_; }
  // The backward operator's; null and 0 in a forward context.
  const OpInfo* backward_op() const { return backward_info_; }
  OpType backward_type() const { return backward_type_; }
  OpId backward_op_id() const { return backward_id_; }
  std::string name_space() const { return std::string(backend_->name_space()); }

  bool is_forward() const { return !is_backward(); }
  bool is_backward() const { return backward_info_ != nullptr; }
  const Tool& tool() const;         // whose analysis is running
  std::string module_path() const;  // "encoder.layer.3.attention"; "" outside modules
  std::string source() const;       // file:line of the user's call; "" where none is known
  bool is_recompute() const;
  bool is_symbolic() const;
  size_t depth() const;  // operators around this one that the tool also sees

  // Of the forward operator. In a backward context a value is null unless it is still alive.
  size_t num_inputs() const;
  Value input(size_t position) const;
  bool has_outputs() const;  // in a require_outputs analysis, and in every backward one
  size_t num_outputs() const;
  Value output(size_t position) const;
  // Of the backward operator: its positions are the framework's own. An undefined gradient is null or None.
  size_t num_grad_outputs() const;
  Value grad_output(size_t position) const;
  bool has_grad_inputs() const;  // in a require_outputs analysis of a backward operator
  size_t num_grad_inputs() const;
  Value grad_input(size_t position) const;
  OpSite& site() const;  // for drivers' and bindings' typed access

  /// Keys that tools leave for one another. bool, int64_t, double, std::string and vectors of them are
  /// shared with Python.
  template <class T>
  void set(const std::string& key, T value) {
    keys_[key] = std::any(std::move(value));
  }
  template <class T>
  const T* get(const std::string& key) const {
    auto found = keys_.find(key);
    return found == keys_.end() ? nullptr : std::any_cast<T>(&found->second);
  }
  std::map<std::string, std::any>& keys() { return keys_; }
  const std::map<std::string, std::any>& keys() const { return keys_; }

  // Actions. Each runs in every run of the operator, on the thread that runs it, so perhaps on several threads at once;
  // operators that it calls are not observed. What it throws reaches the program, unless the scope's `on_error` stops
  // the tool instead. All of these throw `Error` outside an analysis, or if the framework cannot do it, with the
  // reason; and `std::invalid_argument` if a position is selected that the operator does not have.

  /// Runs `routine` just before the operator, on the selected inputs. It may set others in their place.
  ///
  /// Throws `Error` in a backward analysis: the forward operator has run.
  Action insert_before_op(std::function<void(Values&)> routine, BeforeOp options = {});
  /// The same, with a routine that has a name for messages and may keep state. The scope shares it.
  Action insert_before_op(RoutinePtr routine, BeforeOp options = {});

  /// Runs `routine` just after the operator, on the selected outputs. It may set others in their place.
  ///
  /// It does not run if the operator throws. Throws `Error` in a backward analysis.
  Action insert_after_op(std::function<void(Values&)> routine, AfterOp options = {});
  /// The same, with a named routine.
  Action insert_after_op(RoutinePtr routine, AfterOp options = {});

  /// Runs `routine` instead of the operator, on the selected inputs. It must set all results, or call the original.
  ///
  /// A replacement that was scheduled earlier, by any tool, becomes the original of this one. Throws `Error` in a
  /// backward analysis, and for an operator that cannot be replaced.
  Action replace_op(std::function<void(Values&)> routine, ReplaceOp options = {});
  /// The same, with a named routine.
  Action replace_op(RoutinePtr routine, ReplaceOp options = {});

  // On a backward operator: from its own analysis; or from the forward operator's, for each backward operator that it
  // creates and that has the selected positions. The thread is then the backward pass's, often not the one that ran the
  // forward operator. From a forward analysis these throw `Error` if the framework has no backward operators or this
  // operator has no id, and `std::invalid_argument` for a position that is a name.

  /// Runs `routine` just before the backward operator, on the selected gradients that come in.
  Action insert_before_backward_op(std::function<void(Values&)> routine, BeforeBackwardOp options = {});
  /// The same, with a named routine.
  Action insert_before_backward_op(RoutinePtr routine, BeforeBackwardOp options = {});

  /// Runs `routine` just after the backward operator, on the selected gradients that it has computed.
  Action insert_after_backward_op(std::function<void(Values&)> routine, AfterBackwardOp options = {});
  /// The same, with a named routine.
  Action insert_after_backward_op(RoutinePtr routine, AfterBackwardOp options = {});

  /// Runs `routine` instead of the backward operator, on the selected gradients that come in. It must set all
  /// gradients that go out, or call the original.
  ///
  /// Throws `Error` for one that cannot be replaced, such as that of a leaf.
  Action replace_backward_op(std::function<void(Values&)> routine, ReplaceBackwardOp options = {});
  /// The same, with a named routine.
  Action replace_backward_op(RoutinePtr routine, ReplaceBackwardOp options = {});

  /// The actions scheduled by this analysis from here on may change, in place, tensors they were given.
  void may_mutate();

  /// What the scope's tools have scheduled on this operator so far, and on its backward operators, in the order in
  /// which it runs; without actions that were removed. Also outside an analysis, on any thread, as long as the context
  /// lives.
  std::vector<ActionDescription> actions() const;

  std::unique_ptr<ContextFace>& face() { return face_; }
  const std::unique_ptr<ContextFace>& face() const { return face_; }

 private:
  friend class AnalysisSession;
  ContextSession& session(const char* asked) const;
  std::shared_ptr<const OpPlace> place() const;
  Action schedule(Phase phase, Point point, RoutinePtr routine, const Positions& positions, bool differentiable,
                  bool allow_view, RoutineKind kind);

  ContextSession* session_ = nullptr;
  ScopeState* scope_ = nullptr;  // and the record that this is the context of
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
