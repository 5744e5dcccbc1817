#include "forward/boxed_operands.h"

namespace amanda::pytorch {

std::optional<size_t> BoxedOperands::missing_result() const {
  const c10::ArrayRef<c10::IValue> all = results();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].isNone() && record_.schema.returns()[i].type()->kind() != c10::TypeKind::OptionalType) return i;
  }
  return std::nullopt;
}

void BoxedOperands::skip() {
  torch::jit::drop(stack_, record_.info.inputs.size());
  stack_.resize(stack_.size() + record_.info.outputs.size());
  state_ = State::kSkipped;
}

void BoxedOperands::put_back(const std::vector<c10::IValue>& arguments) {
  torch::jit::drop(stack_, record_.info.outputs.size());
  stack_.insert(stack_.end(), arguments.begin(), arguments.end());
}

}  // namespace amanda::pytorch
