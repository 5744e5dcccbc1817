// One operator call on the boxed stack, as the core sees it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <utility>
#include <vector>

#include "forward/backward_watch.h"
#include "forward/boxed_operands.h"
#include "forward/boxed_operator.h"
#include "forward/forward_call.h"
#include "forward/in_place_run.h"

namespace amanda::pytorch {

/// Its parts: the operator, its operands, the run of an operator that writes to some of them, and the autograd nodes
/// that the run creates. The call itself checks edits, and puts them in place.
class StackCall final : public ForwardCall {
 public:
  StackCall(const OpRecord& record, const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack,
            Identity known = {});
  /// A call that is identified as another one: get_op() of that one runs it.
  StackCall(const OpRecord& record, const c10::OperatorHandle& op, torch::jit::Stack& stack, OpId id);

  Value get(Side side, size_t position) override;
  void run(RunHints hints) override;
  void skip(RunHints hints) override;
  bool has_results() const override { return !operands_.is_ready(); }
  void show_run_inputs() override { operands_.show_run_inputs(); }
  void finish() override;
  void set(Side side, size_t position, Value value) override;
  bool stops_gradient(Side side, size_t position, Value value) override;
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
  c10::ArrayRef<OperandTensor> argument_tensors() const override { return operands_.argument_tensors(); }
  c10::ArrayRef<OperandTensor> result_tensors() const override { return operands_.result_tensors(); }

  /// The operator was run elsewhere: its arguments are on the stack, and `push` replaces them by its results.
  template <class Push>
  void ran(RunHints hints, std::optional<NodeWindow> made, const Push& push) {
    begin_run(hints);
    if (made) operands_.keep_inputs(program_inputs());
    if (hints.keep_run_inputs) operands_.keep_run_inputs();
    torch::jit::drop(operands_.stack(), record_.info.inputs.size());
    push(operands_.stack());
    backward_.begin(std::move(made));
    operands_.ran();
  }

 private:
  struct Staged {
    Side side;
    size_t position;
    c10::IValue value;
  };

  std::vector<c10::IValue> program_inputs() const;
  std::shared_ptr<ForwardOperands> operands_now() const override;
  void begin_run(RunHints hints);
  void finish_trial();
  bool bind_now(ScopeStack& scopes, const SubscriptionPtr& seen_by, RunSource& runs);
  void bind_deferred();
  void put_argument(size_t position, const c10::IValue& value);
  void put_result(size_t position, const c10::IValue& value);

  const BoxedOperator op_;
  BoxedOperands operands_;
  InPlaceRun in_place_;
  BackwardWatch backward_;
  std::vector<EditedInput> edited_inputs_;
  std::vector<Staged> staged_;
  const c10::StorageImpl* viewed_ = nullptr;  // of the argument that the result may be a view of; only compared
};

}  // namespace amanda::pytorch
