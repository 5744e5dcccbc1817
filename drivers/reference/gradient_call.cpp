#include "gradient_call.h"

#include <utility>

#include "driver.h"

namespace amanda::reference {

GradientCall::GradientCall(const GradientNode& node, const GradientNode::Owner& owner, Gradients grad_outputs,
                           std::function<Gradients(const Gradients&)> original)
    : BackwardCall(grad_outputs),
      node_(node),
      owner_(owner),
      original_(std::move(original)),
      given_(std::move(grad_outputs)) {}

Backend& GradientCall::backend() const { return Driver::eager(); }

Value GradientCall::get(Side side, size_t position) {
  if (side == Side::kOutputs || !show_given_) return BackwardCall::get(side, position);
  const std::optional<Operand>& gradient = given_.at(position);
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
  BackwardCall::skip(hints);
}

}  // namespace amanda::reference
