#include "kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include "amanda/error.h"
#include "autocast.h"
#include "base/python_hooks.h"
#include "compiled_call.h"
#include "coverage/coverage_counter.h"
#include "lent.h"
#include "table.h"

namespace amanda::pytorch {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Runs `fn`, and throws its errors in the form that the caller expects: Python code or the autograd engine.
template <class Fn>
auto guarded(const Fn& fn) {
  try {
    return fn();
  } catch (const Error&) {
    if (python_hooks.rethrow) python_hooks.rethrow();
    throw;
  }
}

/// The slot of a node, kept alive with its table.
std::shared_ptr<const Slot> slot_of(const at::Tensor& table, int64_t number) {
  std::shared_ptr<const Table> held = Held::of<Table>(table);
  const Slot* slot = held ? held->at(number) : nullptr;
  return slot ? std::shared_ptr<const Slot>(std::move(held), slot) : nullptr;
}

std::shared_ptr<Run> run_of(at::TensorList run) { return run.empty() ? nullptr : Held::of<Run>(run[0]); }

/// The node's tensors, from those that are there.
Tensors spread(at::TensorList values, at::IntArrayRef which, const Slot& slot, Lent& lent) {
  Tensors all(slot.positions().size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t number = which.empty() ? i : which[i];
    if (number < all.size()) all[number] = lent.tensor(values[i]);
  }
  return all;
}

/// In memory of its own, laid out like the other: the compiler knows no more about the result.
at::Tensor fresh_like(const at::Tensor& like, const at::Tensor& value) {
  const OwnWork uncounted;
  return value.defined() ? at::empty_like(like).copy_(value) : at::zeros_like(like);
}

[[noreturn]] void throw_lost_gradient(const Slot& slot) {
  throw Error(c10::str(
      "[compile] ", slot.op().op.operator_name().name,
      ": a routine or replacement uses a tensor of its own that needs ",
      "a gradient, and no operand of the operator needs one, so this compiled code would lose the gradient; open the ",
      "scope with compiled=\"eager\", or schedule the routine with traceable=True"));
}

void look(at::TensorList values, at::IntArrayRef which, at::IntArrayRef numbers, at::TensorList run,
          const at::Tensor& table, int64_t number) {
  guarded([&] {
    const std::shared_ptr<const Slot> slot = slot_of(table, number);
    if (!slot) return;
    Lent lent(&slot->op());  // outlives the call, which holds tensors of it
    CompiledCall call(*slot, spread(values, which, *slot, lent), numbers);
    call.run_taps(run_of(run).get());
  });
}

Tensors edit(at::TensorList values, at::IntArrayRef which, at::IntArrayRef numbers, at::TensorList run,
             const at::Tensor& table, int64_t number, at::IntArrayRef edited) {
  return guarded([&] {
    const c10::InferenceMode no_inference(false);
    const c10::AutoGradMode no_grad(false);
    Tensors results;
    const std::shared_ptr<const Slot> slot = slot_of(table, number);
    if (!slot) {
      for (int64_t i : edited) results.push_back(fresh_like(values[i], values[i]));
      return results;
    }
    Lent lent(&slot->op());  // outlives the call, which holds tensors of it
    CompiledCall call(*slot, spread(values, which, *slot, lent), numbers);
    call.run_taps(run_of(run).get());
    for (int64_t i : edited) {
      const at::Tensor value = call.tensor(which.empty() ? i : which[i]);
      results.push_back(fresh_like(values[i], value.defined() ? value : values[i]));
    }
    return results;
  });
}

/// Returns results that are detached from the recorded graph. Recorded values are kept: the compiler may reuse the
/// memory of its own values.
Tensors run(at::TensorList values, at::IntArrayRef numbers, at::TensorList run_handle, const at::Tensor& table,
            int64_t number, at::IntArrayRef recorded, c10::string_view, at::IntArrayRef autocast) {
  return guarded([&] {
    const c10::InferenceMode no_inference(false);
    const std::shared_ptr<const Slot> slot = slot_of(table, number);
    if (!slot) throw Error("[compile] this code was compiled for tools that are gone; compile the function again");
    const bool keeps = !recorded.empty() && recorded != kNoneNeeded;
    Lent lent(&slot->op());
    Tensors inputs;
    for (const at::Tensor& value : values) {
      const OwnWork uncounted;
      inputs.push_back(keeps ? value.detach().clone() : lent.tensor(value.detach()));
    }
    for (int64_t i : keeps ? recorded : at::IntArrayRef()) inputs[i].requires_grad_();
    const c10::AutoGradMode grad(!recorded.empty());
    // An autograd function that is called eagerly leaves out its keys.
    const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    const c10::impl::ForceDispatchKeyGuard with_autograd(
        keys.included_, keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    const WithAutocast as_traced(autocast);
    CompiledCall call(*slot, inputs, numbers);
    call.run_taps(run_of(run_handle).get());
    const bool after = !slot->taps().empty() && !slot->replaces();
    Tensors results, kept;
    for (size_t i = 0; i < slot->positions().size(); ++i) {
      const std::optional<TensorPosition>& position = slot->positions()[i];
      const bool is_result = after ? i < values.size() : position && position->side == Side::kOutputs;
      if (!is_result) continue;
      kept.push_back(call.tensor(i));
      if (!keeps && kept.back().requires_grad()) throw_lost_gradient(*slot);
      results.push_back(kept.back().detach().clone(at::MemoryFormat::Contiguous));
    }
    if (!keeps) inputs.clear(), kept.clear();
    results.push_back(std::make_shared<Recorded>(std::move(inputs), std::move(kept))->tensor());
    return results;
  });
}

Tensors replay(at::TensorList gradients, at::IntArrayRef which, const at::Tensor& handle, at::TensorList likes,
               at::IntArrayRef wanted, at::TensorList run_handle, const at::Tensor& table, int64_t number) {
  return guarded([&] {
    const c10::InferenceMode no_inference(false);
    const std::shared_ptr<const Recorded> recorded = Held::of<Recorded>(handle);
    if (!recorded) throw Error("[compile] what a replacement recorded for its gradient is gone");
    const std::shared_ptr<const Slot> slot = number < 0 ? nullptr : slot_of(table, number);
    Lent lent(slot ? &slot->op() : nullptr);
    Tensors given(recorded->num_results());
    for (size_t i = 0; i < gradients.size(); ++i) given[which[i]] = lent.tensor(gradients[i]);
    Tensors made;
    if (slot) {
      given.resize(slot->positions().size());
      CompiledCall call(*slot, given, {}, recorded.get());
      call.run_taps(run_of(run_handle).get());
      for (size_t i = 0; i < recorded->num_inputs(); ++i) made.push_back(call.tensor(recorded->num_results() + i));
    } else {
      made = recorded->backward(given);
    }
    Tensors results;
    for (size_t i = 0; i < wanted.size(); ++i) results.push_back(fresh_like(likes[i], made[wanted[i]]));
    return results;
  });
}

at::Tensor begin(const at::Tensor&, int64_t) { return std::make_shared<Run>()->tensor(); }

// ---- what they return, for the compiler ----------------------------------------------------------------------------

void look_meta(at::TensorList, at::IntArrayRef, c10::SymIntArrayRef, at::TensorList, const at::Tensor&, int64_t) {}

Tensors edit_meta(at::TensorList values, at::IntArrayRef, c10::SymIntArrayRef, at::TensorList, const at::Tensor&,
                  int64_t, at::IntArrayRef edited) {
  Tensors results;
  for (int64_t i : edited) results.push_back(at::empty_like(values[i]));
  return results;
}

Tensors replay_meta(at::TensorList, at::IntArrayRef, const at::Tensor&, at::TensorList likes, at::IntArrayRef,
                    at::TensorList, const at::Tensor&, int64_t) {
  Tensors results;
  for (const at::Tensor& like : likes) results.push_back(at::empty_like(like));
  return results;
}

at::Tensor begin_meta(const at::Tensor& table, int64_t) { return at::empty_like(table); }

template <class Fn>
auto operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Fn>();
}

}  // namespace

void call_look(at::TensorList values, at::IntArrayRef which, c10::SymIntArrayRef numbers, const Node& node) {
  static const auto op = operator_named<decltype(look_meta)>("amanda::look_v1");
  op.call(values, which, numbers, node.run, node.table, node.slot);
}

Tensors call_edit(at::TensorList values, at::IntArrayRef which, c10::SymIntArrayRef numbers, const Node& node,
                  at::IntArrayRef edited) {
  static const auto op = operator_named<decltype(edit_meta)>("amanda::edit_v1");
  return op.call(values, which, numbers, node.run, node.table, node.slot, edited);
}

Tensors call_run(at::TensorList values, c10::SymIntArrayRef numbers, const Node& node, at::IntArrayRef recorded,
                 c10::string_view original, at::IntArrayRef autocast) {
  static const auto op =
      operator_named<Tensors(at::TensorList, c10::SymIntArrayRef, at::TensorList, const at::Tensor&, int64_t,
                             at::IntArrayRef, c10::string_view, at::IntArrayRef)>("amanda::run_v1");
  return op.call(values, numbers, node.run, node.table, node.slot, recorded, original, autocast);
}

Tensors call_replay(at::TensorList gradients, at::IntArrayRef which, const at::Tensor& recorded, at::TensorList likes,
                    at::IntArrayRef wanted, const Node& node) {
  static const auto op = operator_named<decltype(replay_meta)>("amanda::replay_v1");
  return op.call(gradients, which, recorded, likes, wanted, node.run, node.table, node.slot);
}

TORCH_LIBRARY(amanda, m) {
  m.def("look_v1(Tensor[] values, int[] which, SymInt[] numbers, Tensor[] run, Tensor table, int slot) -> ()");
  m.def(
      "edit_v1(Tensor[] values, int[] which, SymInt[] numbers, Tensor[] run, Tensor table, int slot, int[] edited) -> "
      "Tensor[]");
  m.def(
      "run_v1(Tensor[] values, SymInt[] numbers, Tensor[] run, Tensor table, int slot, int[] recorded, str original, "
      "int[] autocast) -> Tensor[]");
  m.def(
      "replay_v1(Tensor[] gradients, int[] which, Tensor recorded, Tensor[] likes, int[] wanted, Tensor[] run, Tensor "
      "table, int slot) -> Tensor[]");
  m.def("begin_v1(Tensor table, int slot) -> Tensor");
}

TORCH_LIBRARY_IMPL(amanda, CompositeExplicitAutograd, m) {
  m.impl("look_v1", &look);
  m.impl("edit_v1", &edit);
  m.impl("run_v1", &run);
  m.impl("replay_v1", &replay);
  m.impl("begin_v1", &begin);
}

TORCH_LIBRARY_IMPL(amanda, Meta, m) {
  m.impl("look_v1", &look_meta);
  m.impl("edit_v1", &edit_meta);
  m.impl("replay_v1", &replay_meta);
  m.impl("begin_v1", &begin_meta);
}

TORCH_LIBRARY_IMPL(amanda, Autograd, m) {
  for (const char* name : {"look_v1", "edit_v1", "run_v1", "replay_v1", "begin_v1"}) {
    m.impl(name, torch::CppFunction::makeFallthrough());
  }
}

}  // namespace amanda::pytorch
