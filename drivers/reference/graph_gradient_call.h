// One execution of a backward operator in a graph, or of one of its taps.
#pragma once

#include "backward_call.h"
#include "driver.h"
#include "program.h"

namespace amanda::reference {

class GraphGradientCall final : public BackwardCall {
 public:
  struct Forward {
    const Operator& op;
    Location location;
    Operands inputs, outputs;  // as the backward operator sees them
  };
  GraphGradientCall(Forward forward, Gradients grad_outputs, Gradients grad_inputs)
      : BackwardCall(std::move(grad_outputs), std::move(grad_inputs)), forward_(std::move(forward)) {}

  // The functions that analyses use.
  Backend& backend() const override { return Driver::graph(); }
  OpType type() const override { return forward_.op.gradient_type; }
  OpId id() override;
  size_t size(Side side) const override { return forward_size(opposite(side)); }
  std::string detail(Detail which) override { return which == Detail::kModulePath ? forward_.location.path : ""; }
  OpType forward_type() const override { return forward_.op.type; }
  OpId forward_id() override { return forward_.location.id_of(forward_.op); }
  size_t forward_size(Side side) const override { return forward(side).size(); }
  Value forward_get(Side side, size_t position) override { return value(forward(side).at(position)); }

  void run(RunHints hints) override;

 private:
  const Shape* shape(Side side, size_t position) const override {
    const auto* like = std::get_if<Array>(&forward(opposite(side))[position]);
    return like ? &like->shape() : nullptr;
  }
  /// Gradients arrive on the side on which values leave.
  static Side opposite(Side side) { return side == Side::kInputs ? Side::kOutputs : Side::kInputs; }
  const Operands& forward(Side side) const { return side == Side::kOutputs ? forward_.outputs : forward_.inputs; }

  Forward forward_;
};

}  // namespace amanda::reference
