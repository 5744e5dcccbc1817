#include "forward/forward_call.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "amanda/pool.h"
#include "amanda/torch.h"
#include "backward/grad_hooks.h"
#include "base/python_hooks.h"
#include "base/tensor_handle.h"
#include "thread/keys.h"
#include "thread/tracing.h"

namespace amanda::pytorch {

[[gnu::hot]] Backend& ForwardCall::backend() const { return pytorch::backend(); }

[[gnu::hot]] size_t ForwardCall::size(Side side) const {
  return side == Side::kOutputs ? record_.info.outputs.size() : record_.info.inputs.size();
}

const Identity& ForwardCall::identity() {
  if (identity_.id == 0) identity_ = identify(record_, argument_tensors(), raw_);
  return identity_;
}

std::string ForwardCall::detail(Detail which) {
  if (which == Detail::kIsRecompute) return is_recomputed() ? "recompute" : "";
  return python_hooks.describe ? python_hooks.describe(identity().raw_path, which) : "";
}

void ForwardCall::remember_results() {
  if (identity_.id != 0 && identity_.raw_path == 0) remember_producer(identity_.dataflow, result_tensors());
}

[[gnu::hot]] uint64_t ForwardCall::gradient_mask() const {
  if (!thread_keys().with_torch_state().autograd->get_grad_mode()) return 0;
  uint64_t mask = 1;
  // An operator of another library may use weights of its own, and a wrapper hides what the levels below record.
  bool any = record_.info.ns != "aten";
  for (const OperandTensor& operand : argument_tensors()) {
    const bool requires_grad = operand.tensor->requires_grad();
    any |= requires_grad || operand.tensor->key_set().has_any(kFunctorchWrappers);
    mask = mask * 3 + 1 + requires_grad;
  }
  return any ? mask | 1 : 0;
}

bool ForwardCall::bind_made(ScopeStack& scopes, const NodeWindow& window, const std::vector<c10::IValue>& written,
                            const std::vector<EditedInput>& edited, std::shared_ptr<ForwardOperands> operands,
                            const SubscriptionPtr& seen_by, RunSource& runs) {
  OperandTensors both;
  c10::ArrayRef<OperandTensor> tensors = result_tensors();
  if (!written.empty()) {
    both.append(tensors.begin(), tensors.end());
    both.append(tensors_of(written));
    tensors = both;
  }
  SomeTensors levels;  // few calls have any
  const bool wrapped = std::any_of(tensors.begin(), tensors.end(), [](const OperandTensor& one) {
    return one.tensor->defined() && one.tensor->key_set().has_any(kFunctorchWrappers);
  });
  if (wrapped) {
    for (const OperandTensor& one : tensors) levels.push_back(*one.tensor);
    levels = all_levels(levels);
  }
  NodeWindow::Made made = wrapped ? window.made(levels) : window.made(tensors);
  if (made.nodes.empty()) return nothing_made();
  // A leaf that a differentiable routine replaced still belongs to the operator.
  std::vector<port::NodePtr> kept;
  for (const auto& [position, input] : edited) {
    each_tensor(input, [&, at = position](const at::Tensor& tensor) {
      if (!tensor.requires_grad() || !tensor.is_leaf()) return;
      port::NodePtr node = torch::autograd::impl::try_get_grad_accumulator(tensor);
      const bool known = std::any_of(made.leaves.begin(), made.leaves.end(),
                                     [&](const NodeWindow::Leaf& leaf) { return leaf.accumulate == node.get(); });
      if (!node || known) return;
      made.leaves.push_back({node.get(), NodeWindow::kOperand, at});
      kept.push_back(std::move(node));
    });
  }
  auto connected = [&](std::shared_ptr<ForwardOperands> all) {
    for (const NodeWindow::Leaf& leaf : made.leaves) all->connect(*leaf.accumulate);
    return all;
  };
  if (operands) operands = connected(std::move(operands));
  const PlanPtr* const plan = runs.plan();
  const auto forward = std::allocate_shared<ForwardRun>(
      PoolAllocator<ForwardRun>(), ForwardRun{seen_by,
                                              record_.type,
                                              id(),
                                              identity_.raw_path,
                                              std::move(operands),
                                              {},
                                              plan ? std::weak_ptr(*plan) : std::weak_ptr<const Plan>()});
  const bool analysed = bind_nodes(scopes, made, forward, id(), /*made_by_forward=*/true, &runs);
  // Other shapes, or autocast, create other nodes at the same place: only here it is known that they are new.
  if (!analysed && !forward->operands) forward->operands = connected(operands_now());
  return analysed;
}

}  // namespace amanda::pytorch
