// The operands of one operator call on the boxed stack.
#pragma once

#include <ATen/core/stack.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/op_types.h"
#include "base/stack_value.h"

namespace amanda::pytorch {

/// The arguments of a call, and after its run the results, which take their places on the stack.
class BoxedOperands {
 public:
  enum class State : uint8_t { kReady, kRan, kSkipped };

  /// The arguments are on top of the stack.
  BoxedOperands(const OpRecord& record, torch::jit::Stack& stack)
      : record_(record), stack_(stack), base_(stack.size() - record.info.inputs.size()) {}

  State state() const { return state_; }
  bool is_ready() const { return state_ == State::kReady; }

  /// Before the run those on the stack. After it those that were kept, or else none.
  c10::ArrayRef<c10::IValue> arguments() const {
    if (is_ready()) return torch::jit::last(stack_, record_.info.inputs.size());
    return shows_run_inputs_ ? run_inputs_ : inputs_;
  }
  /// None before the run.
  c10::ArrayRef<c10::IValue> results() const {
    return torch::jit::last(stack_, is_ready() ? 0 : record_.info.outputs.size());
  }
  /// Their tensors; valid until the next call.
  c10::ArrayRef<OperandTensor> argument_tensors() const { return tensors_ = tensors_of(arguments()); }
  c10::ArrayRef<OperandTensor> result_tensors() const { return tensors_ = tensors_of(results()); }
  /// An argument before the run, and a result after it.
  c10::IValue& operator[](size_t position) { return stack_[base_ + position]; }
  const c10::IValue& operator[](size_t position) const { return stack_[base_ + position]; }
  /// The position of a result that a replacement has not set.
  std::optional<size_t> missing_result() const;

  /// Keeps the program's inputs over the run.
  void keep_inputs(std::vector<c10::IValue> inputs) { inputs_ = std::move(inputs); }
  const std::vector<c10::IValue>& kept_inputs() const { return inputs_; }
  /// Before the run: keeps the inputs that the operator gets, for show_run_inputs().
  void keep_run_inputs() { run_inputs_ = arguments().vec(); }
  /// From now on, arguments() has them.
  void show_run_inputs() { shows_run_inputs_ = true; }

  torch::jit::Stack& stack() { return stack_; }
  /// The operator has taken the arguments off the stack and put its results there.
  void ran() { state_ = State::kRan; }
  /// It does not run: the results are to be set.
  void skip();
  /// Puts arguments in the place of the results, to run again.
  void put_back(const std::vector<c10::IValue>& arguments);

 private:
  const OpRecord& record_;
  torch::jit::Stack& stack_;
  const size_t base_;
  State state_ = State::kReady;
  bool shows_run_inputs_ = false;
  std::vector<c10::IValue> inputs_, run_inputs_;
  mutable OperandTensors tensors_;  // the last result of argument_tensors() or result_tensors()
};

}  // namespace amanda::pytorch
