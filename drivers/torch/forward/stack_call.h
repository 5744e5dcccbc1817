// One operator call on the boxed stack, as the core sees it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <vector>

#include "forward/forward_call.h"
#include "forward/random_state.h"

namespace amanda::pytorch {

// NOTE: [in-place operators]
// An unboxed caller of relu_(x) or add(..., out=x) ignores the kernel's results and continues with x. So an edited
// result must end up in x, but a plain copy into x would overwrite values that autograd saved of it. Therefore, if an
// edit is expected and autograd records, the operator runs on a private copy with x's gradient edge, and finish()
// assigns the edited value to x with a copy_ that autograd records too. That is correct for views, and for x's other
// holders.
//
// Earlier runs decide whether an edit is expected (RunHints::edit_result). While that is unknown, routines first see a
// trial run: the operator on a private copy, hidden from the user's modes and saved-tensor hooks, and with the random
// state restored afterwards. Then the operator runs for real, as it is or as above. A custom operator may do more than
// its schema declares, so it gets no trial run; an edit is assumed. There is no trial run if the program's own modes or
// subclasses would see it. If a routine first only looked and then edits, its first edit is refused while autograd
// records.
//
// If a routine raises after the run, abandon() has the same effect as finish(): the tensor is changed, as it is if the
// operator ran on the tensor itself.
class StackCall final : public ForwardCall {
 public:
  StackCall(const OpRecord& record, const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack,
            Identity known = {});
  /// A call that is identified as another one: get_op() of that one runs it.
  StackCall(const OpRecord& record, const c10::OperatorHandle& op, torch::jit::Stack& stack, OpId id);

  Value get(Side side, size_t position) override;
  void run(RunHints hints) override;
  void skip(RunHints hints) override;
  bool has_results() const override { return state_ != State::kReady; }
  void show_run_inputs() override { shows_run_inputs_ = true; }
  void finish() override;
  void set(Side side, size_t position, Value value) override;
  void commit() override;
  void discard() noexcept override { staged_.clear(); }
  uint64_t versions(Side side) const override;
  uint64_t unmutated_versions() const override;
  void watch_backward(bool keep_operands) override;
  bool bind_backward(ScopeStack& scopes, const SubscriptionPtr& seen_by, RunSource& runs) override;

  bool result_is_view() const override;
  bool has_symbols() const override;
  bool is_viewed(size_t position) override;
  void abandon() noexcept override;
  c10::ArrayRef<OperandTensor> argument_tensors() const override { return tensors_ = tensors_of(arguments()); }
  c10::ArrayRef<OperandTensor> result_tensors() const override { return tensors_ = tensors_of(results()); }

  /// The operator was run elsewhere: its arguments are on the stack, and `push` replaces them by its results.
  template <class Push>
  void ran(RunHints hints, std::optional<NodeWindow> made, const Push& push) {
    begin_run(hints);
    if (made) inputs_ = program_inputs();
    keep_run_inputs();
    torch::jit::drop(stack_, record_.info.inputs.size());
    push(stack_);
    made_ = std::move(made);
    state_ = State::kRan;
  }

 private:
  struct Staged {
    Side side;
    size_t position;
    c10::IValue value;
  };
  /// An argument that the operator may write to although its schema calls it read-only, and that a tool has edited.
  struct UndeclaredWrite {
    c10::IValue original, given, copy;  // the program's, the tool's, and the operator's
    uint64_t version;                   // of the copy, before the run
  };
  enum class State : uint8_t { kReady, kRan, kSkipped };

  c10::ArrayRef<c10::IValue> arguments() const;
  c10::ArrayRef<c10::IValue> results() const;
  std::vector<c10::IValue> program_inputs() const;
  std::shared_ptr<ForwardOperands> operands_now() const override;
  void begin_run(RunHints hints);
  void keep_run_inputs() {
    if (keeps_run_inputs_ && state_ == State::kReady) run_inputs_ = arguments().vec();
  }
  void redispatch();
  bool autograd_will_record_in_place() const;
  bool runs_unseen() const;
  bool has_original(size_t position) const;
  void run_on_private_copy();
  void bind_after_trial();
  void trial_run();
  void run_after_trial();
  void check_in_place(size_t written, const c10::IValue& old, const c10::IValue& given) const;
  void check_members(const c10::IValue& old, const c10::IValue& given) const;
  void assign_results();
  void assign_undeclared();
  c10::IValue keep_undeclared(const c10::IValue& old, const c10::IValue& given);
  bool has_all_results() const;
  void put_argument(size_t position, c10::IValue value);
  void put_result(size_t position, c10::IValue value);

  const c10::OperatorHandle& op_;
  mutable OperandTensors tensors_;            // the last result of argument_tensors() or result_tensors()
  std::optional<c10::DispatchKeySet> below_;  // without a value, the call starts from the top
  torch::jit::Stack& stack_;
  size_t base_;
  State state_ = State::kReady;
  bool observe_inner_ = false, keeps_run_inputs_ = false, shows_run_inputs_ = false;
  std::vector<EditedInput> edited_inputs_;
  std::vector<c10::IValue> inputs_;      // kept over the run, if they are needed afterwards
  std::vector<c10::IValue> run_inputs_;  // the inputs on which the operator ran, if an action after it will ask
  std::vector<c10::IValue> run_with_;    // the arguments of an in-place operator, if it may have to run or assign again
  std::vector<Staged> staged_;
  const c10::StorageImpl* viewed_ = nullptr;  // of the argument that the result may be a view of; only compared

  // See the note above. By argument position: the caller's value, if the stack holds another one.
  std::vector<std::pair<size_t, c10::IValue>> originals_;
  c10::IValue trial_result_;  // the result that was shown, if there was a trial run
  std::optional<RandomState> random_before_;
  bool result_edited_ = false;
  bool inner_shown_ = false, inner_edited_ = false;  // in the trial run
  bool finished_ = false;
  std::vector<UndeclaredWrite> undeclared_;

  // For the operator's backward operators.
  std::optional<NodeWindow> made_;
  std::shared_ptr<ForwardOperands> operands_;
  std::vector<c10::IValue> written_;  // the operands that it writes to and does not return
  SubscriptionPtr bind_when_run_;     // set while only the trial has run
  ScopeStack* bind_under_ = nullptr;  // the scopes for bind_when_run_
  RunStatePtr trial_run_state_;       // the run for bind_when_run_
};

}  // namespace amanda::pytorch
