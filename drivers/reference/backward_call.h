// The gradients of one execution of a backward operator, on the tape or in a graph.
#pragma once

#include <optional>
#include <vector>

#include "amanda/driver/backend.h"
#include "amanda/reference/operator.h"

namespace amanda::reference {

class BackwardCall : public OpCall {
 public:
  Phase phase() const final { return Phase::kBackward; }
  Value get(Side side, size_t position) override;

  void skip(RunHints hints) override;
  bool has_results() const final { return false; }  // the incoming gradients are kept, too
  void finish() final {}
  void set(Side side, size_t position, Value value) final;
  void commit() final;
  void discard() noexcept final { held_.clear(); }
  uint64_t versions(Side side) const final;

  const Gradients& grad_outputs() const { return grad_outputs_; }
  Gradients& grad_inputs() { return grad_inputs_; }

 protected:
  explicit BackwardCall(Gradients grad_outputs, Gradients grad_inputs = {})
      : grad_outputs_(std::move(grad_outputs)), grad_inputs_(std::move(grad_inputs)) {}
  ~BackwardCall() = default;

  /// The shape that a gradient must have. Null if any will do.
  virtual const Shape* shape(Side side, size_t position) const = 0;
  /// True if a replacement must set this result.
  virtual bool needs_result(size_t) const { return true; }

  Gradients grad_outputs_, grad_inputs_;

 private:
  struct Held {
    Side side;
    size_t position;
    std::optional<Operand> value;
  };
  Gradients& gradients(Side side) { return side == Side::kOutputs ? grad_inputs_ : grad_outputs_; }

  std::vector<Held> held_;
};

}  // namespace amanda::reference
