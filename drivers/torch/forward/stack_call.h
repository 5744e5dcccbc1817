// One operator call on the boxed stack, as the core sees it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <vector>

#include "forward/forward_call.h"
#include "forward/random_state.h"

namespace amanda::pytorch {

// NOTE: [in-place operators]
// An unboxed caller of relu_(x) or add(..., out=x) ignores what the kernel returns and goes on with x. So an edited
// result must end up in x; but a plain copy into x would spoil what autograd saved of it. Therefore, where an edit is
// to come and autograd records, the operator runs on a private copy that carries x's gradient edge, and finish()
// assigns the edited value to x by a copy_ that autograd records, too: right for views, and for x's other holders.
//
// Whether an edit is to come is known from earlier runs (RunHints::edit_result). Where it is not known yet, routines
// first see a rehearsal: the operator on a private copy, out of sight of the user's modes and saved-tensor hooks, and
// with the random state put back. Then it runs for real, as it is or as above. (A custom operator may do more than its
// schema says, so it is not rehearsed, but prepared for an edit.) Nothing is rehearsed before the eyes of the program's
// own modes and subclasses. A routine that first only looked and now edits is refused once, while autograd records.
//
// If a routine raises after the run, abandon() does what finish() would have done: the tensor is changed, as it is
// where the operator ran on the tensor itself.
class StackCall final : public ForwardCall {
 public:
  StackCall(const OpRecord& record, const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack,
            Identity known = {});
  /// A call that is identified as another one: what get_op() of that one stands for.
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

  /// The operator ran by other means: its arguments are on the stack, and `push` puts its results there instead.
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
  /// An argument that the operator may write to though its schema calls it read-only, and that a tool has edited.
  struct UndeclaredWrite {
    c10::IValue original, given, copy;  // the program's, the tool's, and what the operator gets
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
  void bind_rehearsed();
  void rehearse();
  void run_after_rehearsal();
  void check_in_place(size_t written, const c10::IValue& old, const c10::IValue& given) const;
  void check_members(const c10::IValue& old, const c10::IValue& given) const;
  void assign_results();
  void assign_undeclared();
  c10::IValue keep_undeclared(const c10::IValue& old, const c10::IValue& given);
  bool has_all_results() const;
  void put_argument(size_t position, c10::IValue value);
  void put_result(size_t position, c10::IValue value);

  const c10::OperatorHandle& op_;
  mutable OperandTensors tensors_;            // what was asked for last
  std::optional<c10::DispatchKeySet> below_;  // none: call from the top
  torch::jit::Stack& stack_;
  size_t base_;
  State state_ = State::kReady;
  bool observe_inner_ = false, keeps_run_inputs_ = false, shows_run_inputs_ = false;
  std::vector<EditedInput> edited_inputs_;
  std::vector<c10::IValue> inputs_;      // kept over the run, if somebody will ask for them
  std::vector<c10::IValue> run_inputs_;  // what the operator ran on, if an action after it will ask
  std::vector<c10::IValue> run_with_;    // the arguments of an in-place operator, if it may have to run or assign again
  std::vector<Staged> staged_;
  const c10::StorageImpl* viewed_ = nullptr;  // of the argument that the result may be a view of; only compared

  // See the note above. By argument position: what the caller holds, where the stack has something else.
  std::vector<std::pair<size_t, c10::IValue>> originals_;
  c10::IValue rehearsed_;  // the result that was shown, if there was a rehearsal
  std::optional<RandomState> random_before_;
  bool result_edited_ = false;
  bool inner_shown_ = false, inner_edited_ = false;  // in the trial run
  bool finished_ = false;
  std::vector<UndeclaredWrite> undeclared_;

  // For the operator's backward operators.
  std::optional<NodeWindow> made_;
  std::shared_ptr<ForwardOperands> operands_;
  std::vector<c10::IValue> written_;  // what it writes to and does not return
  SubscriptionPtr bind_when_run_;     // only rehearsed so far
  ScopeStack* bind_under_ = nullptr;  // then
  RunStatePtr rehearsed_run_;         // then
};

}  // namespace amanda::pytorch
