#include "gradient_call.h"

#include <fmt/format.h>

#include <utility>

#include "amanda/error.h"
#include "driver.h"

namespace amanda::reference {

GradientCall::GradientCall(const GradientNode& node, const GradientNode::Owner& owner, Gradients grad_outputs,
                           std::function<Gradients(const Gradients&)> original)
    : node_(node),
      owner_(owner),
      original_(std::move(original)),
      given_(grad_outputs),
      grad_outputs_(std::move(grad_outputs)) {}

Backend& GradientCall::backend() const { return Driver::eager(); }

Value GradientCall::get(Side side, size_t position) {
  const Gradients& shown = side == Side::kOutputs ? grad_inputs_ : show_given_ ? given_ : grad_outputs_;
  const std::optional<Operand>& gradient = shown.at(position);
  return gradient ? value(*gradient) : Value{};
}

std::string GradientCall::detail(Detail which) { return which == Detail::kModulePath ? owner_.run->path : ""; }

Value GradientCall::forward_get(Side side, size_t position) {
  const std::optional<Array::Weak>& operand = forward_operands(side).at(position);
  std::optional<Array> alive = operand ? operand->lock() : std::nullopt;
  return alive ? value(shown_.emplace_back(*std::move(alive))) : Value{};
}

void GradientCall::run(RunHints hints) {
  show_given_ = hints.keep_inputs;  // for an analysis: the program's values, not the tools' edits
  grad_inputs_ = original_(grad_outputs_);
}

void GradientCall::skip(RunHints hints) {
  show_given_ = hints.keep_inputs;
  std::vector<bool> is_set(node_.next.size(), false);
  for (const Held& held : held_) {
    if (held.side == Side::kOutputs) is_set[held.position] = true;
  }
  for (size_t i = 0; i < is_set.size(); ++i) {
    if (node_.next[i].node && !is_set[i]) throw Error(fmt::format("result {} was not set", i));
  }
  grad_inputs_.assign(is_set.size(), std::nullopt);  // commit() fills them in
}

void GradientCall::set(Side side, size_t position, Value value) {
  if (position >= size(side)) throw Error(fmt::format("there are only {}", size(side)));
  if (!value.ref) return held_.push_back({side, position, std::nullopt});  // undefined: no gradient flows
  const auto* array = std::get_if<Array>(&operand(value));
  if (!array) throw Error(fmt::format("{} where an array is needed", kind(operand(value))));
  if (const Shape& needed = shapes(side)[position]; array->shape() != needed) {
    throw Error(fmt::format("shape {} where {} is needed", to_string(array->shape()), to_string(needed)));
  }
  held_.push_back({side, position, *array});
}

void GradientCall::commit() {
  for (Held& held : held_) {
    (held.side == Side::kOutputs ? grad_inputs_ : grad_outputs_)[held.position] = std::move(held.value);
  }
  held_.clear();
}

uint64_t GradientCall::versions(Side side) const {
  const auto& gradients = side == Side::kOutputs ? grad_inputs_ : grad_outputs_;
  uint64_t sum = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i]) sum += std::get<Array>(*gradients[i]).version() * version_weight(i);
  }
  return sum;
}

}  // namespace amanda::reference
