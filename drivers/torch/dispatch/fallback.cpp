#include "dispatch/fallback.h"

#include "amanda/driver/engine.h"
#include "backward/running_node.h"
#include "base/op_types.h"
#include "base/port.h"
#include "coverage/coverage_counter.h"
#include "dispatch/call_recorder.h"
#include "dispatch/caller_errors.h"
#include "dispatch/place_table.h"
#include "forward/stack_call.h"
#include "thread/engine_threads.h"
#include "thread/tracing.h"

namespace amanda::pytorch {

ScopeStack* observers(KeyRole role, CurrentScopes& held) {
  const ThreadKeys& thread = thread_keys();
  if (C10_UNLIKELY(thread.unobserved != 0)) return nullptr;
  // First: it releases tools' objects, which may leave a scope.
  if (C10_UNLIKELY(has_running_nodes()) && !port::inside_backward()) forget_running_nodes();
  if (C10_LIKELY(thread.role == role)) return thread.scopes;
  held = current_scopes();
  if (held.get() == thread.scopes) thread.restore();  // not on a thread of the engine, which has the caller's keys
  return held.get();
}

bool is_observed(const ForwardCall& call, c10::DispatchKeySet key_set) {
  const OpRecord& record = call.record();
  const bool symbols = record.takes_symbols && call.has_symbols();
  if (!record.noise && !symbols && !belongs_to_backward() && !is_traced(key_set, call.argument_tensors())) return true;
  if (counts_calls()) note_refused(record);
  return false;
}

void observe(ScopeStack& scopes, ForwardCall& call) {
  if (C10_UNLIKELY(counts_calls())) note_shown(scopes, call, &call.record());
  rethrow_for_callers(call, [&] { Engine::on_op(scopes, call); });
}

namespace {

void catch_call(KeyRole role, const c10::OperatorHandle& op, c10::DispatchKeySet key_set, torch::jit::Stack* stack) {
  const c10::DispatchKeySet rest = below(role, key_set);
  const OpRecord& record = op_types().of(op);
  StackCall call(record, op, rest, *stack);
  Way way;
  find_way(way, role, record, rest, record.takes_symbols && call.has_symbols(), call.argument_tensors());
  if (way.kind == Way::Kind::kBelow) {
    const Inside inside(way);
    return op.redispatchBoxed(rest, stack);
  }
  if (way.kind == Way::Kind::kKnown) {
    observe_known(way, call);  // a boxed call runs the operator itself
    return;
  }
  call.begin_at(way.raw);
  if (!is_observed(call, rest)) {
    if (!run_recorded(call)) op.redispatchBoxed(rest, stack);
    return;
  }
  CurrentScopes held;
  ScopeStack* scopes = observers(role, held);
  if (C10_UNLIKELY(!scopes)) return op.redispatchBoxed(rest, stack);
  observe(*scopes, call);
  learn_place(way, call);
}

}  // namespace

void catch_all(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack) {
  catch_call(KeyRole::kAll, op, ks, stack);
}

void catch_filtered(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack) {
  catch_call(KeyRole::kFilter, op, ks, stack);
}

}  // namespace amanda::pytorch
