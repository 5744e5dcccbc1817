#include "backward_call.h"

#include <fmt/format.h>

#include <algorithm>

#include "amanda/error.h"

namespace amanda::reference {

Value BackwardCall::get(Side side, size_t position) {
  const std::optional<Operand>& gradient = gradients(side).at(position);
  return gradient ? value(*gradient) : Value{};
}

void BackwardCall::skip(RunHints) {
  for (size_t i = 0; i < size(Side::kOutputs); ++i) {
    const bool is_set = std::any_of(held_.begin(), held_.end(), [i](const Held& held) {
      return held.side == Side::kOutputs && held.position == i;
    });
    if (needs_result(i) && !is_set) throw Error(fmt::format("result {} was not set", i));
  }
  grad_inputs_.assign(size(Side::kOutputs), std::nullopt);  // commit() fills them in
}

void BackwardCall::set(Side side, size_t position, Value value) {
  if (position >= size(side)) throw Error(fmt::format("there are only {}", size(side)));
  if (!value.ref) return held_.push_back({side, position, std::nullopt});  // undefined: no gradient flows
  const auto* array = std::get_if<Array>(&operand(value));
  if (!array) throw Error(fmt::format("{} where an array is needed", kind(operand(value))));
  if (const Shape* needed = shape(side, position); needed && array->shape() != *needed) {
    throw Error(fmt::format("shape {} where {} is needed", to_string(array->shape()), to_string(*needed)));
  }
  held_.push_back({side, position, *array});
}

void BackwardCall::commit() {
  for (Held& held : held_) gradients(held.side)[held.position] = std::move(held.value);
  held_.clear();
}

uint64_t BackwardCall::versions(Side side) const {
  const Gradients& gradients = side == Side::kOutputs ? grad_inputs_ : grad_outputs_;
  uint64_t sum = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i]) sum += std::get<Array>(*gradients[i]).version() * version_weight(i);
  }
  return sum;
}

}  // namespace amanda::reference
