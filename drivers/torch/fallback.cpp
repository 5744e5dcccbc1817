#include "fallback.h"

#include "amanda/engine.h"
#include "amanda/error.h"
#include "engine_threads.h"
#include "grad_hooks.h"
#include "keys.h"
#include "op_types.h"
#include "port.h"
#include "python_hooks.h"
#include "stack_call.h"
#include "tracing.h"

namespace amanda::pytorch {
namespace {

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
  if (record.noise || belongs_to_backward() || is_traced(torch::jit::last(*stack, record.info.inputs.size())))
    return op.redispatchBoxed(below, stack);
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
