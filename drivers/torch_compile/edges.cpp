// amanda::edge_v1: taps before or after an operator, on the values of one of its sides and on their gradients. It is an
// autograd function that the compiler traces through, so that only its nodes that run taps are left.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "kernels.h"

namespace amanda::pytorch {
namespace {

using Tensors = std::vector<at::Tensor>;
using torch::autograd::AutogradContext;

/// The slots that run on the values, and on their gradients.
struct EdgePlan {
  c10::SymIntArrayRef numbers;
  c10::ArrayRef<at::Tensor> run;
  at::Tensor table;
  int64_t forward;  // a slot, or -1 if there is none
  bool forward_edits;
  at::IntArrayRef edited;
  int64_t backward;
  bool backward_edits;
  at::IntArrayRef watched;  // values whose gradients the slot gets
  bool copies;              // the program changes values in place
};

/// True if elements have memory of their own, as in a slice, and unlike in an expanded tensor.
bool has_no_overlap(const at::Tensor& tensor) {
  const c10::SymIntArrayRef sizes = tensor.sym_sizes(), strides = tensor.sym_strides();
  std::vector<size_t> dimensions;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1) dimensions.push_back(i);
  }
  std::stable_sort(dimensions.begin(), dimensions.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  c10::SymInt next = 1;  // the smallest stride that steps over all that is before
  for (size_t i : dimensions) {
    if (strides[i] < next) return false;
    next = strides[i] * (sizes[i] - 1) + next;
  }
  return true;
}

/// The edited tensor, laid out like the one that it replaces, as far as elements of that have memory of their own:
/// operators add up in the order of the memory.
at::Tensor laid_out_like(const at::Tensor& like, at::Tensor edited) {
  if (like.layout() != at::kStrided || like.is_non_overlapping_and_dense() || !has_no_overlap(like)) return edited;
  return at::empty_strided_symint(like.sym_sizes(), like.sym_strides(), like.options()).copy_(edited);
}

struct Edge : torch::autograd::Function<Edge> {
  static Tensors forward(AutogradContext* context, at::TensorList values, const EdgePlan& plan) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->set_materialize_grads(false);
    context->saved_data["slot"] = plan.backward;
    context->saved_data["edits"] = plan.backward_edits;
    context->saved_data["watched"] = plan.watched.vec();
    Tensors saved{plan.table};
    saved.insert(saved.end(), plan.run.begin(), plan.run.end());
    context->save_for_backward(std::move(saved));
    return run(values, plan);
  }

  static Tensors run(at::TensorList values, const EdgePlan& plan) {
    Tensors results(values.size());
    const Node node{plan.run, plan.table, plan.forward};
    if (plan.forward >= 0 && plan.forward_edits) {
      Tensors edited = call_edit(values, {}, plan.numbers, node, plan.edited);
      for (size_t i = 0; i < edited.size(); ++i)
        results[plan.edited[i]] = laid_out_like(values[plan.edited[i]], std::move(edited[i]));
    } else if (plan.forward >= 0) {
      call_look(values, {}, plan.numbers, node);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (results[i].defined()) continue;
      results[i] = plan.copies ? values[i].clone() : values[i].view_as(values[i]);
    }
    return results;
  }

  static Tensors backward(AutogradContext* context, Tensors gradients) {
    const int64_t slot = context->saved_data["slot"].toInt();
    if (slot >= 0) run_backward(context, gradients, slot);
    gradients.emplace_back();  // of the plan
    return gradients;
  }

  static void run_backward(AutogradContext* context, Tensors& gradients, int64_t slot) {
    const Tensors saved = context->get_saved_variables();
    const Node node{c10::ArrayRef<at::Tensor>(saved).slice(1), saved[0], slot};
    Tensors values;
    std::vector<int64_t> which, all;
    const std::vector<int64_t> watched = context->saved_data["watched"].toIntVector();
    for (size_t i = 0; i < watched.size(); ++i) {
      if (!gradients[watched[i]].defined()) continue;
      all.push_back(static_cast<int64_t>(values.size()));
      which.push_back(static_cast<int64_t>(i));
      values.push_back(gradients[watched[i]]);
    }
    if (values.empty()) return;
    if (!context->saved_data["edits"].toBool()) return call_look(values, which, {}, node);
    Tensors edited = call_edit(values, which, {}, node, all);
    for (size_t i = 0; i < edited.size(); ++i) gradients[watched[which[i]]] = std::move(edited[i]);
  }
};

Tensors edge(at::TensorList values, c10::SymIntArrayRef numbers, at::TensorList run, const at::Tensor& table,
             int64_t forward, bool forward_edits, at::IntArrayRef edited, int64_t backward, bool backward_edits,
             at::IntArrayRef watched, bool copies) {
  const Tensors held(run.begin(), run.end());
  return Edge::apply(values, EdgePlan{numbers, held, table, forward, forward_edits, edited, backward, backward_edits,
                                      watched, copies});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(amanda, m) {
  m.def(
      "edge_v1(Tensor[] values, SymInt[] numbers, Tensor[] run, Tensor table, int forward, bool forward_edits, int[] "
      "edited, int backward, bool backward_edits, int[] watched, bool copies) -> Tensor[]",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(edge)));
}

}  // namespace amanda::pytorch
