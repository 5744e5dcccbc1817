#include "backward/forward_operands.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace amanda::pytorch {

ForwardOperands::Tensor ForwardOperands::keep(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (tensor.requires_grad() && tensor.is_leaf()) return Leaf{tensor.unsafeGetTensorImpl()};
  if (tensor.is_leaf()) return {};
  return WeakTensor(tensor);
}

ForwardOperands::Operand ForwardOperands::keep(const c10::IValue& operand) {
  if (operand.isTensor()) return keep(operand.toTensor());
  if (!operand.isTensorList() && !operand.isOptionalTensorList()) return operand;
  std::vector<Tensor> tensors;
  for (const c10::IValue& member : operand.toListRef()) {
    tensors.push_back(member.isTensor() ? keep(member.toTensor()) : Tensor());
  }
  return tensors;
}

void ForwardOperands::keep_inputs(c10::ArrayRef<c10::IValue> inputs) {
  inputs_.reserve(inputs_.size() + inputs.size());
  for (const c10::IValue& input : inputs) inputs_.push_back(keep(input));
}

void ForwardOperands::keep_outputs(c10::ArrayRef<c10::IValue> outputs) {
  outputs_.reserve(outputs_.size() + outputs.size());
  for (const c10::IValue& output : outputs) outputs_.push_back(keep(output));
}

void ForwardOperands::connect(torch::autograd::Node& accumulate) {
  const auto* node = dynamic_cast<torch::autograd::AccumulateGrad*>(&accumulate);
  if (!node) return;
  auto connect_one = [&](Tensor& tensor) {
    auto* leaf = std::get_if<Leaf>(&tensor);
    if (leaf && leaf->address == node->variable.unsafeGetTensorImpl()) {
      leaf->accumulate = port::WeakNodePtr(accumulate.getptr());
    }
  };
  for (Operand& operand : inputs_) {
    if (auto* tensor = std::get_if<Tensor>(&operand)) connect_one(*tensor);
    if (auto* list = std::get_if<std::vector<Tensor>>(&operand)) {
      for (Tensor& tensor : *list) connect_one(tensor);
    }
  }
}

at::Tensor ForwardOperands::alive(const Tensor& tensor) {
  if (const auto* weak = std::get_if<WeakTensor>(&tensor)) return weak->lock();
  if (const auto* leaf = std::get_if<Leaf>(&tensor)) {
    const port::NodePtr node = leaf->accumulate.lock();
    if (node) return static_cast<torch::autograd::AccumulateGrad&>(*node).variable;
  }
  return {};
}

c10::IValue ForwardOperands::get(Side side, size_t position) const {
  const std::vector<Operand>& operands = side == Side::kOutputs ? outputs_ : inputs_;
  if (position >= operands.size()) return {};
  const Operand& operand = operands[position];
  if (const auto* value = std::get_if<c10::IValue>(&operand)) return *value;
  if (const auto* tensor = std::get_if<Tensor>(&operand)) return alive(*tensor);
  c10::List<std::optional<at::Tensor>> list;
  for (const Tensor& tensor : std::get<std::vector<Tensor>>(operand)) {
    at::Tensor member = alive(tensor);
    list.push_back(member.defined() ? std::optional(member) : std::nullopt);
  }
  return list;
}

}  // namespace amanda::pytorch
