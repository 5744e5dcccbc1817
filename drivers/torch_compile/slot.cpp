#include "slot.h"

#include <c10/util/StringUtil.h>

#include "amanda/driver/engine.h"
#include "amanda/error.h"

namespace amanda::pytorch {

Slot::Slot(std::shared_ptr<const Operator> op, const std::vector<uint64_t>& tap_ids, std::vector<Operand> inputs,
           std::vector<Operand> outputs, size_t num_tensors, std::vector<Form> forms)
    : op_(std::move(op)),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      positions_(num_tensors),
      forms_(std::move(forms)) {
  for (uint64_t id : tap_ids) {
    taps_.push_back(Engine::tap(id));
    if (!taps_.back()) throw Error(c10::str("[compile] there is no tap ", id, "; its artifact must live"));
  }
  add_positions(Side::kInputs, inputs_);
  add_positions(Side::kOutputs, outputs_);
}

void Slot::add_positions(Side side, const std::vector<Operand>& operands) {
  const auto put = [&](const Operand& operand, size_t position, size_t member) {
    if (operand.kind != Operand::Kind::kTensor) return;
    if (operand.index >= positions_.size()) {
      throw Error(c10::str("[compile] operand ", position, " is tensor ", operand.index, " of ", positions_.size()));
    }
    positions_[operand.index] = {side, position, member};
  };
  for (size_t position = 0; position < operands.size(); ++position) {
    put(operands[position], position, 0);
    for (size_t i = 0; i < operands[position].members.size(); ++i) put(operands[position].members[i], position, i);
  }
}

const c10::Argument& Slot::argument(Side side, size_t position) const {
  if (phase() == Phase::kForward) {
    const c10::FunctionSchema& schema = op_->op.schema();
    return side == Side::kOutputs ? schema.returns()[position] : schema.arguments()[position];
  }
  static const auto* gradient = new c10::Argument("", c10::OptionalType::create(c10::TensorType::get()));
  static const auto* gradients = new c10::Argument("", c10::ListType::create(gradient->type()));
  return operands(side)[position].kind == Operand::Kind::kList ? *gradients : *gradient;
}

}  // namespace amanda::pytorch
