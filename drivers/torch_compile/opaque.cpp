// amanda::opaque_v1: an operator that runs inside a node, because a replacement or a differentiable routine is in its
// place. The graph that the routine records is kept with the node's results, and gives their gradient.
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "autocast.h"
#include "kernels.h"

namespace amanda::pytorch {
namespace {

using Tensors = std::vector<at::Tensor>;
using torch::autograd::AutogradContext;

struct OpaquePlan {
  c10::SymIntArrayRef numbers;
  c10::ArrayRef<at::Tensor> run;
  at::Tensor table;
  int64_t slot, backward;
  bool records;  // gradients
  const std::vector<int64_t>& recorded;
  c10::string_view original;
};

struct Opaque : torch::autograd::Function<Opaque> {
  static Tensors forward(AutogradContext* context, at::TensorList values, const OpaquePlan& plan) {
    context->set_materialize_grads(false);
    const at::IntArrayRef recorded =
        plan.records && plan.recorded.empty() ? kNoneNeeded : at::IntArrayRef(plan.recorded);
    Tensors results =
        call_run(values, plan.numbers, {plan.run, plan.table, plan.slot}, recorded, plan.original, autocast_here());
    context->saved_data["backward"] = plan.backward;
    context->saved_data["recorded"] = plan.recorded;
    context->saved_data["values"] = static_cast<int64_t>(values.size());
    Tensors saved{plan.table, results.back()};
    results.pop_back();
    for (int64_t i : plan.recorded) saved.push_back(values[i]);
    saved.insert(saved.end(), plan.run.begin(), plan.run.end());
    context->save_for_backward(std::move(saved));
    return results;
  }

  static Tensors backward(AutogradContext* context, Tensors gradients) {
    const std::vector<int64_t> recorded = context->saved_data["recorded"].toIntVector();
    Tensors found(context->saved_data["values"].toInt() + 1);  // and of the plan
    Tensors given;
    std::vector<int64_t> which;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      given.push_back(gradients[i]);
      which.push_back(static_cast<int64_t>(i));
    }
    if (given.empty()) return found;
    const Tensors saved = context->get_saved_variables();
    const auto rest = c10::ArrayRef<at::Tensor>(saved).slice(2);
    const Node node{rest.slice(recorded.size()), saved[0], context->saved_data["backward"].toInt()};
    Tensors made = call_replay(given, which, saved[1], rest.slice(0, recorded.size()), recorded, node);
    for (size_t i = 0; i < made.size(); ++i) found[recorded[i]] = std::move(made[i]);
    return found;
  }
};

Tensors opaque(at::TensorList values, c10::SymIntArrayRef numbers, at::TensorList run, const at::Tensor& table,
               int64_t slot, int64_t backward, c10::string_view original) {
  const bool records = c10::GradMode::is_enabled();
  std::vector<int64_t> recorded;
  for (size_t i = 0; records && i < values.size(); ++i) {
    if (values[i].requires_grad()) recorded.push_back(static_cast<int64_t>(i));
  }
  const Tensors held(run.begin(), run.end());
  return Opaque::apply(values, OpaquePlan{numbers, held, table, slot, backward, records, recorded, original});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(amanda, m) {
  m.def(
      "opaque_v1(Tensor[] values, SymInt[] numbers, Tensor[] run, Tensor table, int slot, int backward, str original) "
      "-> Tensor[]",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(opaque)));
}

}  // namespace amanda::pytorch
