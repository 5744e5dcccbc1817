#include "forward/forward_call.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "amanda/base/pool.h"
#include "amanda/torch.h"
#include "backward/grad_hooks.h"
#include "base/python_hooks.h"
#include "base/tensor_handle.h"
#include "identity/named_tensors.h"
#include "thread/keys.h"
#include "thread/tracing.h"

namespace amanda::pytorch {

[[gnu::hot]] Backend& ForwardCall::backend() const { return pytorch::backend(); }

const Identity& ForwardCall::identity() {
  if (identity_.id == 0) identity_ = identify(record_, argument_tensors(), raw_);
  return identity_;
}

namespace {

// See ModuleNames.
std::string named_path(ForwardCall& call) {
  std::string path = path_of_named(call.record(), call.argument_tensors());
  const bool ran = !call.result_tensors().empty();  // a routine may have put another tensor in a parameter's place
  if (ran && path.empty()) return remembered_path(call.id());
  remember_path(call.id(), path);
  return path;
}

}  // namespace

std::string ForwardCall::detail(Detail which) {
  if (which == Detail::kIsRecompute) return is_recomputed() ? "recompute" : "";
  std::string found = python_hooks.describe ? python_hooks.describe(identity().raw_path, which) : "";
  return found.empty() && which == Detail::kModulePath && has_named_tensors() ? named_path(*this) : found;
}

void ForwardCall::remember_results() {
  if (identity_.id != 0 && identity_.raw_path == 0) remember_producer(identity_.dataflow, result_tensors());
}

[[gnu::hot]] uint64_t ForwardCall::gradient_mask() const {
  if (!thread_keys().with_torch_state().autograd->get_grad_mode()) return 0;
  uint64_t mask = 1;
  // An operator of another library may use weights of its own, and a wrapper hides the records of the levels below.
  bool any = record_.info.ns != "aten";
  for (const OperandTensor& operand : argument_tensors()) {
    const bool requires_grad = operand.tensor->requires_grad();
    any |= requires_grad || operand.tensor->key_set().has_any(kFunctorchWrappers);
    mask = mask * 3 + 1 + requires_grad;
  }
  return any ? mask | 1 : 0;
}

namespace {

bool are_wrapped(c10::ArrayRef<OperandTensor> tensors) {
  for (const OperandTensor& one : tensors) {
    if (one.tensor->defined() && one.tensor->key_set().has_any(kFunctorchWrappers)) return true;
  }
  return false;
}

// `levels` keeps the tensors below the wrappers.
[[gnu::noinline]] NodeWindow::Made made_of_levels(const NodeWindow& window, c10::ArrayRef<OperandTensor> tensors,
                                                  SomeTensors& levels) {
  for (const OperandTensor& one : tensors) levels.push_back(*one.tensor);
  levels = all_levels(levels);
  return window.made(levels);
}

NodeWindow::Made made_of(const NodeWindow& window, c10::ArrayRef<OperandTensor> tensors, SomeTensors& levels) {
  return C10_UNLIKELY(are_wrapped(tensors)) ? made_of_levels(window, tensors, levels) : window.made(tensors);
}

[[gnu::noinline]] NodeWindow::Made made_with_written(const NodeWindow& window, c10::ArrayRef<OperandTensor> results,
                                                     const std::vector<c10::IValue>& written, SomeTensors& levels) {
  OperandTensors both(results.begin(), results.end());
  both.append(tensors_of(written));
  return made_of(window, both, levels);
}

}  // namespace

bool ForwardCall::bind_made(ScopeStack& scopes, const NodeWindow& window, const std::vector<c10::IValue>& written,
                            const std::vector<EditedInput>& edited, std::shared_ptr<ForwardOperands> operands,
                            const SubscriptionPtr& seen_by, RunSource& runs) {
  SomeTensors levels;  // few calls have any
  NodeWindow::Made made = written.empty() ? made_of(window, result_tensors(), levels)
                                          : made_with_written(window, result_tensors(), written, levels);
  if (made.nodes.empty()) return nothing_made();
  std::vector<port::NodePtr> kept;
  if (C10_UNLIKELY(!edited.empty())) kept = add_edited_leaves(made, edited);
  if (operands) connect(*operands, made);
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
  if (C10_UNLIKELY(!analysed && !forward->operands)) {
    auto now = operands_now();
    connect(*now, made);
    forward->operands = std::move(now);
  }
  return analysed;
}

// A leaf that a differentiable routine replaced still belongs to the operator.
std::vector<port::NodePtr> ForwardCall::add_edited_leaves(NodeWindow::Made& made,
                                                          const std::vector<EditedInput>& edited) {
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
  return kept;
}

void ForwardCall::connect(ForwardOperands& operands, const NodeWindow::Made& made) {
  for (const NodeWindow::Leaf& leaf : made.leaves) operands.connect(*leaf.accumulate);
}

}  // namespace amanda::pytorch
