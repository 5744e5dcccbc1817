// One execution of a node of the tape, as an operator: gradients of results in, gradients of inputs out.
#pragma once

#include <deque>
#include <functional>

#include "amanda/driver/backend.h"
#include "tape.h"

namespace amanda::reference {

class GradientCall final : public OpCall {
 public:
  /// run() calls `original`.
  GradientCall(const GradientNode& node, const GradientNode::Owner& owner, Gradients grad_outputs,
               std::function<Gradients(const Gradients&)> original);

  // The functions that analyses use.
  Backend& backend() const override;
  OpType type() const override { return node_.type; }
  Phase phase() const override { return Phase::kBackward; }
  OpId id() override { return owner_.id; }
  size_t size(Side side) const override { return shapes(side).size(); }
  Value get(Side side, size_t position) override;
  std::string detail(Detail which) override;

  OpType forward_type() const override { return owner_.run->type; }
  OpId forward_id() override { return owner_.run->id; }
  size_t forward_size(Side side) const override { return forward_operands(side).size(); }
  Value forward_get(Side side, size_t position) override;
  const Subscription* subscription() const override { return owner_.run->seen_by.get(); }
  RunStatePtr run_state() const override { return owner_.run->run; }
  bool made_by_forward() const override { return !node_.is_leaf(); }

  // The functions of the execution.
  void run(RunHints hints) override;
  void skip(RunHints hints) override;
  bool has_results() const override { return false; }  // the incoming gradients are kept, too
  void show_run_inputs() override { show_given_ = false; }
  void finish() override {}
  void set(Side side, size_t position, Value value) override;
  void commit() override;
  void discard() noexcept override { held_.clear(); }
  uint64_t versions(Side side) const override;

  const Gradients& grad_outputs() const { return grad_outputs_; }
  Gradients& grad_inputs() { return grad_inputs_; }

 private:
  struct Held {
    Side side;
    size_t position;
    std::optional<Operand> value;
  };
  const std::vector<Shape>& shapes(Side side) const {
    return side == Side::kOutputs ? node_.input_shapes : node_.output_shapes;
  }
  const std::vector<std::optional<Array::Weak>>& forward_operands(Side side) const {
    return side == Side::kOutputs ? owner_.run->outputs : owner_.run->inputs;
  }

  const GradientNode& node_;
  const GradientNode::Owner& owner_;
  std::function<Gradients(const Gradients&)> original_;
  Gradients given_;  // as the backward pass computed them
  Gradients grad_outputs_, grad_inputs_;
  bool show_given_ = false;
  std::vector<Held> held_;
  std::deque<Operand> shown_;  // forward operands, alive as long as tools may look at them
};

}  // namespace amanda::reference
