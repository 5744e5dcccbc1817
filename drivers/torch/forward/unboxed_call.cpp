#include "forward/unboxed_call.h"

#include <c10/core/GradMode.h>

#include "thread/keys.h"

namespace amanda::pytorch {

StackCall& UnboxedCall::boxed() {
  if (boxed_) return boxed_->call;
  torch::jit::Stack arguments;
  push_arguments(arguments);
  StackCall& call = boxed_.emplace(*this, std::move(arguments)).call;
  if (ran_) call.ran(hints_, std::move(made_), [this](torch::jit::Stack& stack) { push_results(stack); });
  if (shows_run_inputs_) call.show_run_inputs();
  return call;
}

Value UnboxedCall::get(Side side, size_t position) {
  if (boxed_) return boxed_->call.get(side, position);
  const bool after = side == Side::kOutputs;
  if (position >= size(side) || (after && !ran_)) return {};
  return {&shown_.get(after ? record_.info.inputs.size() + position : position, [&] { return box(side, position); })};
}

[[gnu::hot]] const at::Tensor* UnboxedCall::unboxed_tensor(Side side, size_t position) const {
  const bool after = side == Side::kOutputs;
  if (boxed_ || position >= size(side) || (after && !ran_)) return nullptr;
  const auto& positions = after ? record_.schema.returns() : record_.schema.arguments();
  if (positions[position].type()->kind() != c10::TypeKind::TensorType) return nullptr;  // a list: several tensors
  for (const OperandTensor& operand : after ? result_tensors() : argument_tensors()) {
    if (operand.position == position) return operand.tensor;
  }
  return nullptr;
}

[[gnu::hot]] void UnboxedCall::run(RunHints hints) {
  if (boxed_ || (hints.edit_result != Edit::kNo && !record_.mutated.empty())) return boxed().run(hints);
  if (C10_LIKELY(!hints.in_replacement)) return redispatch(hints);
  const WithProgramModes modes(true);
  redispatch(hints);
}

[[gnu::hot]] void UnboxedCall::redispatch(RunHints hints) {
  hints_ = hints;
  if (hints.observe_inner) {
    redispatch();
  } else {
    const CatchNothing unobserved(*thread_keys().with_torch_state().bits);
    redispatch();
  }
  ran_ = true;
  remember_results();
}

[[gnu::hot]] uint64_t UnboxedCall::versions(Side side) const {
  if (boxed_) return boxed_->call.versions(side);
  if (side == Side::kOutputs) return version_sum(unboxed_results());
  return version_sum(arguments_);
}

uint64_t UnboxedCall::unmutated_versions() const {
  return boxed_ ? boxed_->call.unmutated_versions() : version_sum_besides(record_.mutated, arguments_);
}

void UnboxedCall::watch_backward(bool keep_operands) {
  if (boxed_ || keep_operands) return boxed().watch_backward(keep_operands);
  if (c10::GradMode::is_enabled()) made_.emplace();
}

std::shared_ptr<ForwardOperands> UnboxedCall::operands_now() const {
  torch::jit::Stack arguments, results;
  push_arguments(arguments);
  push_results(results);
  auto operands = std::make_shared<ForwardOperands>();
  operands->keep_inputs(arguments);
  operands->keep_outputs(results);
  return operands;
}

bool UnboxedCall::bind_backward(ScopeStack& scopes, const SubscriptionPtr& seen_by, RunSource& runs) {
  if (boxed_) return boxed_->call.bind_backward(scopes, seen_by, runs);
  if (!made_) return false;
  if (made_->is_empty()) return nothing_made();
  return bind_made(scopes, *made_, {}, {}, nullptr, seen_by, runs);
}

}  // namespace amanda::pytorch
