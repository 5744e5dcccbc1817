#include "fallback.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "amanda/engine.h"
#include "amanda/error.h"
#include "engine_threads.h"
#include "grad_hooks.h"
#include "keys.h"
#include "op_types.h"
#include "port.h"
#include "python_hooks.h"
#include "stack_call.h"

namespace amanda::pytorch {
namespace {

// Somebody traces the program with stand-in tensors (compilation, export): it does not run.
bool is_traced(const OpRecord& record, const torch::jit::Stack& stack) {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  if (c10::impl::dispatch_mode_enabled()) {
    for (auto mode : {TorchDispatchModeKey::FAKE, TorchDispatchModeKey::PROXY, TorchDispatchModeKey::FUNCTIONAL}) {
      if (TorchDispatchModeTLS::get_mode(mode)) return true;
    }
  }
  if (!python_hooks.is_symbolic) return false;
  bool symbolic = false;
  each_tensor(torch::jit::last(stack, record.info.inputs.size()), [&](const at::Tensor& tensor) {
    if (tensor.key_set().has(c10::DispatchKey::Python)) symbolic |= python_hooks.is_symbolic(py_object(tensor));
  });
  return symbolic;
}

// Operators that a backward operator is made of belong to it, unless it recomputes a part of the forward pass.
bool belongs_to_backward() {
  return port::inside_backward() && !(python_hooks.in_recompute && python_hooks.in_recompute());
}

void catch_call(KeyRole role, const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack) {
  // The other key may be in the set when a guard restored its bit: one call is one event.
  const c10::DispatchKeySet below =
      (ks & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, keys().of(role))) - keys().both;
  const ThreadKeys& thread = thread_keys();
  ScopeStack* scopes = thread.scopes;
  if (C10_UNLIKELY(thread.role != role)) {
    scopes = current_scopes();
    if (scopes == thread.scopes) thread.restore();  // not on a thread of the engine: it has the caller's keys
  }
  if (C10_UNLIKELY(!scopes)) return op.redispatchBoxed(below, stack);

  if (C10_UNLIKELY(has_running_nodes()) && !port::inside_backward()) forget_running_nodes();
  const OpRecord& record = op_types().of(op);
  if (record.noise || belongs_to_backward() || is_traced(record, *stack)) return op.redispatchBoxed(below, stack);
  try {
    StackCall call(record, op, below, *stack);
    Engine::on_op(*scopes, call);
  } catch (const Error&) {
    if (python_hooks.rethrow) python_hooks.rethrow();
    throw;
  }
}

}  // namespace

void catch_all(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack) {
  catch_call(KeyRole::kAll, op, ks, stack);
}

void catch_filtered(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack) {
  catch_call(KeyRole::kFilter, op, ks, stack);
}

}  // namespace amanda::pytorch
