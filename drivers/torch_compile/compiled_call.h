// One run of a slot's taps, as the core and Python see it.
#pragma once

#include <vector>

#include "base/compiled_operand.h"
#include "slot.h"
#include "table.h"

namespace amanda::pytorch {

/// The autograd graph that an operator recorded while it ran inside a node, for its gradient.
class Recorded final : public Held {
 public:
  Recorded(std::vector<at::Tensor> inputs, std::vector<at::Tensor> results)
      : inputs_(std::move(inputs)), results_(std::move(results)) {}

  /// By tensors of the results; undefined: none. Returns those of the inputs that were recorded, others undefined.
  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& gradients) const;
  size_t num_results() const { return results_.size(); }
  size_t num_inputs() const { return inputs_.size(); }

 private:
  const std::vector<at::Tensor> inputs_, results_;  // undefined or not recorded: no gradient
};

/// On the stack of the thread that runs the node.
class CompiledCall final : public python::OperatorCall, NoCopy {
 public:
  /// `tensors`: of the node, undefined where there is none. `recorded`: of the operator, if this is its backward one.
  CompiledCall(const Slot& slot, c10::ArrayRef<at::Tensor> tensors, c10::ArrayRef<int64_t> numbers,
               const Recorded* recorded = nullptr);

  /// Runs the taps in order, or the operator itself if there are none.
  void run_taps(Run* run);
  /// A tensor of the node, as it is after the taps.
  at::Tensor tensor(size_t number) const;

  size_t size(Side side) const override { return slot_.operands(side).size(); }
  Value get(Side side, size_t position) override;
  std::string detail(Detail which) override;

  void run(RunHints hints) override;
  void skip(RunHints hints) override;
  void set(Side side, size_t position, Value value) override;
  void commit() override;
  void discard() noexcept override { held_.clear(); }
  uint64_t versions(Side side) const override;

  PyObject* to_python(Side side, size_t position) override;
  void from_python(Side side, size_t position, PyObject* object, const std::function<void(Value)>& put) override;
  bool is_list(Side side, size_t position) override;
  bool is_operand(size_t position, PyObject* object) override;
  PyObject* call_original(PyObject* args) override;
  void raise_error() override;

 private:
  /// For another call of the original: without operands.
  CompiledCall(const Slot& slot, const Recorded* recorded, const Tap* tap);

  struct Edit {
    Side side;
    size_t position;
    c10::IValue value;
  };
  const Operator& op() const { return slot_.op(); }
  std::vector<CompiledOperand>& operands(Side side) { return side == Side::kOutputs ? outputs_ : inputs_; }
  const std::vector<CompiledOperand>& operands(Side side) const { return side == Side::kOutputs ? outputs_ : inputs_; }
  void run_forward();
  void run_backward();
  std::vector<at::Tensor> tensors_of(Side side) const;
  void check_result(size_t position, const c10::IValue& given) const;

  const Slot& slot_;
  const Recorded* const recorded_;
  const Tap* tap_ = nullptr;
  std::vector<CompiledOperand> inputs_, outputs_;
  bool has_outputs_;
  std::vector<Edit> held_;
};

}  // namespace amanda::pytorch
