#include "graph_gradient_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "amanda/error.h"
#include "place_hash.h"
#include "thread_state.h"

namespace amanda::reference {

// The same as on the tape: the first node that the operator creates, and the number of gradients that it computes.
OpId GraphGradientCall::id() {
  return extended(forward_id(), fmt::format("{}.0/{}", operator_of(type()).info.name, size(Side::kOutputs)));
}

Value GraphGradientCall::get(Side side, size_t position) {
  const std::optional<Operand>& gradient = gradients(side).at(position);
  return gradient ? value(*gradient) : Value{};
}

void GraphGradientCall::run(RunHints) {
  if (this_thread.listener) this_thread.listener(operator_of(type()).info);
  const bool any = std::any_of(grad_outputs_.begin(), grad_outputs_.end(),
                               [](const auto& gradient) { return gradient.has_value(); });
  grad_inputs_ = any ? forward_.op.differentiate(forward_.inputs, forward_.outputs)(grad_outputs_)
                     : Gradients(size(Side::kOutputs));
  if (grad_inputs_.size() != size(Side::kOutputs)) {
    throw std::invalid_argument(
        fmt::format("[graph] no gradient flows through '{}': its inputs are not all arrays", forward_.location.path));
  }
}

void GraphGradientCall::skip(RunHints) {
  for (size_t i = 0; i < size(Side::kOutputs); ++i) {
    const bool is_set = std::any_of(held_.begin(), held_.end(), [i](const Held& held) {
      return held.side == Side::kOutputs && held.position == i;
    });
    if (!is_set) throw Error(fmt::format("result {} was not set", i));
  }
  grad_inputs_.assign(size(Side::kOutputs), std::nullopt);  // commit() fills them in
}

void GraphGradientCall::set(Side side, size_t position, Value value) {
  if (position >= size(side)) throw Error(fmt::format("there are only {}", size(side)));
  if (!value.ref) return held_.push_back({side, position, std::nullopt});  // undefined: no gradient flows
  const auto* array = std::get_if<Array>(&operand(value));
  if (!array) throw Error(fmt::format("{} where an array is needed", kind(operand(value))));
  const auto* like = std::get_if<Array>(&forward(opposite(side))[position]);
  if (like && array->shape() != like->shape())
    throw Error(fmt::format("shape {} where {} is needed", to_string(array->shape()), to_string(like->shape())));
  held_.push_back({side, position, *array});
}

void GraphGradientCall::commit() {
  for (Held& held : held_) gradients(held.side)[held.position] = std::move(held.value);
  held_.clear();
}

uint64_t GraphGradientCall::versions(Side side) const {
  const auto& gradients = side == Side::kOutputs ? grad_inputs_ : grad_outputs_;
  uint64_t sum = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i]) sum += std::get<Array>(*gradients[i]).version() * version_weight(i);
  }
  return sum;
}

}  // namespace amanda::reference
