// One execution of a backward operator in a graph, or of one of its taps.
#pragma once

#include "amanda/driver/backend.h"
#include "driver.h"
#include "program.h"

namespace amanda::reference {

class GraphGradientCall final : public OpCall {
 public:
  struct Forward {
    const Operator& op;
    Location location;
    Operands inputs, outputs;  // as the backward operator sees them
  };
  GraphGradientCall(Forward forward, Gradients grad_outputs, Gradients grad_inputs)
      : forward_(std::move(forward)), grad_outputs_(std::move(grad_outputs)), grad_inputs_(std::move(grad_inputs)) {}

  // The functions that analyses use.
  Backend& backend() const override { return Driver::graph(); }
  OpType type() const override { return forward_.op.gradient_type; }
  Phase phase() const override { return Phase::kBackward; }
  OpId id() override;
  size_t size(Side side) const override { return forward_size(opposite(side)); }
  Value get(Side side, size_t position) override;
  std::string detail(Detail which) override { return which == Detail::kModulePath ? forward_.location.path : ""; }
  OpType forward_type() const override { return forward_.op.type; }
  OpId forward_id() override { return forward_.location.id_of(forward_.op); }
  size_t forward_size(Side side) const override { return forward(side).size(); }
  Value forward_get(Side side, size_t position) override { return value(forward(side).at(position)); }

  // The functions of the execution.
  void run(RunHints hints) override;
  void skip(RunHints hints) override;
  bool has_results() const override { return false; }  // the incoming gradients are kept, too
  void finish() override {}
  void set(Side side, size_t position, Value value) override;
  void commit() override;
  void discard() noexcept override { held_.clear(); }
  uint64_t versions(Side side) const override;

  const Gradients& grad_outputs() const { return grad_outputs_; }
  const Gradients& grad_inputs() const { return grad_inputs_; }

 private:
  struct Held {
    Side side;
    size_t position;
    std::optional<Operand> value;
  };
  /// Gradients arrive on the side on which values leave.
  static Side opposite(Side side) { return side == Side::kInputs ? Side::kOutputs : Side::kInputs; }
  const Operands& forward(Side side) const { return side == Side::kOutputs ? forward_.outputs : forward_.inputs; }
  Gradients& gradients(Side side) { return side == Side::kOutputs ? grad_inputs_ : grad_outputs_; }

  Forward forward_;
  Gradients grad_outputs_, grad_inputs_;
  std::vector<Held> held_;
};

}  // namespace amanda::reference
