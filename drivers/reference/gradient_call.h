// One execution of a node of the tape, as an operator: gradients of results in, gradients of inputs out.
#pragma once

#include <deque>
#include <functional>

#include "backward_call.h"
#include "tape.h"

namespace amanda::reference {

class GradientCall final : public BackwardCall {
 public:
  /// run() calls `original`.
  GradientCall(const GradientNode& node, const GradientNode::Owner& owner, Gradients grad_outputs,
               std::function<Gradients(const Gradients&)> original);

  // The functions that analyses use.
  Backend& backend() const override;
  OpType type() const override { return node_.type; }
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
  void show_run_inputs() override { show_given_ = false; }

 private:
  const Shape* shape(Side side, size_t position) const override { return &shapes(side)[position]; }
  bool needs_result(size_t position) const override { return node_.next[position].node != nullptr; }
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
  bool show_given_ = false;
  std::deque<Operand> shown_;  // forward operands, alive as long as tools may look at them
};

}  // namespace amanda::reference
