// The work of a node of a compiled graph: its taps, their operator, and the operands.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>
#include <vector>

#include "amanda/driver/graph.h"
#include "graph_operator.h"
#include "operand.h"

namespace amanda::pytorch {

struct Operator : python::GraphOperator {
  c10::OperatorHandle op;  // of a backward operator: the operator of which it is the derivative
};

/// The dtype and the sizes that a replacement's result must have.
struct Form {
  at::ScalarType dtype;
  std::vector<std::optional<int64_t>> sizes;  // empty if left open
};

/// The position of the operand to which a tensor of a node belongs, and the number of the tensor in a list.
struct TensorPosition {
  Side side;
  size_t position, member;  // member: 0 if it is no list
};

/// Immutable.
class Slot {
 public:
  /// `num_tensors`: of the node; `forms`: of a replacement's results, by tensor. Throws `Error` if a tap is gone.
  Slot(std::shared_ptr<const Operator> op, const std::vector<uint64_t>& tap_ids, std::vector<Operand> inputs,
       std::vector<Operand> outputs, size_t num_tensors, std::vector<Form> forms);

  const Operator& op() const { return *op_; }
  const std::vector<TapPtr>& taps() const { return taps_; }
  Phase phase() const { return op_->phase(); }
  const std::vector<Operand>& operands(Side side) const { return side == Side::kOutputs ? outputs_ : inputs_; }
  const c10::Argument& argument(Side side, size_t position) const;
  /// The position of each tensor; empty for a tensor that belongs to none.
  const std::vector<std::optional<TensorPosition>>& positions() const { return positions_; }
  /// The form of a tensor. Null if nothing is known.
  const Form* form(size_t tensor) const {
    return tensor < forms_.size() && forms_[tensor].dtype != at::ScalarType::Undefined ? &forms_[tensor] : nullptr;
  }
  bool replaces() const { return !taps_.empty() && taps_[0]->point() == Point::kReplace; }

 private:
  void add_positions(Side side, const std::vector<Operand>& operands);

  const std::shared_ptr<const Operator> op_;
  std::vector<TapPtr> taps_;
  const std::vector<Operand> inputs_, outputs_;
  std::vector<std::optional<TensorPosition>> positions_;
  const std::vector<Form> forms_;
};

}  // namespace amanda::pytorch
