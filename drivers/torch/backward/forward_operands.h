// A forward operator's operands, for the analyses of its backward operators.
#pragma once

#include <variant>
#include <vector>

#include "amanda/driver/backend.h"
#include "base/lifetime.h"
#include "base/port.h"

namespace amanda::pytorch {

/// Keeps no tensor alive.
class ForwardOperands {
 public:
  /// Keeps the inputs as they are before the operator runs.
  void keep_inputs(c10::ArrayRef<c10::IValue> inputs);
  void keep_outputs(c10::ArrayRef<c10::IValue> outputs);
  /// The leaf of this AccumulateGrad node, which is among the inputs, is reached through the node.
  void connect(torch::autograd::Node& accumulate);

  size_t size(Side side) const { return (side == Side::kOutputs ? outputs_ : inputs_).size(); }
  /// None where a tensor is no longer alive.
  c10::IValue get(Side side, size_t position) const;

 private:
  struct Leaf {
    const c10::TensorImpl* address;  // only compared
    port::WeakNodePtr accumulate{port::NodePtr()};
  };
  using Tensor = std::variant<std::monostate, WeakTensor, Leaf>;
  using Operand = std::variant<c10::IValue, Tensor, std::vector<Tensor>>;

  static Operand keep(const c10::IValue& operand);
  static Tensor keep(const at::Tensor& tensor);
  static at::Tensor alive(const Tensor& tensor);

  std::vector<Operand> inputs_, outputs_;
};

}  // namespace amanda::pytorch
