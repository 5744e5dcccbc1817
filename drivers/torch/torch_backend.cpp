#include "torch_backend.h"

#include <c10/util/StringUtil.h>

#include "amanda/driver/engine.h"
#include "amanda/error.h"
#include "backward/engine_entry.h"
#include "backward/node_call.h"
#include "backward/node_override.h"
#include "backward/running_node.h"
#include "base/compiled_operand.h"
#include "base/op_types.h"
#include "base/port.h"
#include "base/python_hooks.h"
#include "base/value_info.h"
#include "coverage/first_call.h"
#include "dispatch/registration.h"
#include "forward/forward_call.h"
#include "identity/identity.h"
#include "thread/engine_threads.h"
#include "thread/guards.h"
#include "thread/keys.h"

namespace amanda::pytorch {

std::string_view TorchBackend::name_space() const { return port::kNameSpace; }

Capabilities TorchBackend::capabilities() const {
  return {.backward = BackwardOps::kNodes, .can_replace = true, .can_change_shape = true, .both_sides = true};
}

const OpInfo& TorchBackend::info(OpType type) const {
  return is_node_type(type) ? node_types().of(type).info : op_types().of(type).info;
}

void TorchBackend::switch_to(ScopeStack* scopes) {
  ThreadKeys& thread = thread_keys();
  thread.scopes = scopes;
  thread.serial = scopes ? Engine::serial(*scopes) : 0;
  thread.role = role_for(scopes);
  if (thread.role == KeyRole::kFilter) promote_wanted(Engine::patterns(*scopes));
  thread.restore();
  if (scopes) thread.unblind();
  if (scopes) install_engine_entry();
  publish_scopes(scopes);
  await_calls_here(scopes != nullptr);
  if (has_running_nodes() && !port::inside_backward()) forget_running_nodes();
}

void TorchBackend::expect(const std::vector<std::string>& patterns) { promote_wanted(patterns); }

void TorchBackend::await_call(uint64_t entry, bool elsewhere) { pytorch::await_call(entry, elsewhere); }
AwaitedCall TorchBackend::end_await_call(uint64_t entry) { return pytorch::end_await_call(entry); }

[[gnu::hot]] void* TorchBackend::begin_routines(RoutineMode mode) { return RoutineState::begin(mode); }
[[gnu::hot]] void TorchBackend::end_routines(void* token) noexcept {
  RoutineState::end(static_cast<RoutineState*>(token));
}

bool TorchBackend::is_programs(const std::exception_ptr& error) const {
  return python_hooks.is_programs && python_hooks.is_programs(error);
}

std::string TorchBackend::refusal(OpSite& site, const ActionInfo& action, size_t position) const {
  if (site.phase() == Phase::kBackward) {
    if (action.point != Point::kReplace) return {};
    if (!can_override_nodes()) return "this PyTorch was built with a C++ ABI in which nodes cannot be overridden";
    if (!static_cast<NodeCall&>(site).node_type().accumulates) return {};
    return "a gradient must be accumulated into its leaf; edit it before that, by insert_before_backward_op";
  }
  auto& call = static_cast<ForwardCall&>(site);
  if (action.point != Point::kReplace && call.record().writes_late) {
    return "it writes to tensors that its schema calls read-only, maybe after it has returned; other values cannot "
           "replace them";
  }
  if (action.point == Point::kBefore) {
    if (action.allow_view || !call.is_viewed(position)) return {};
    return "the operator's result is a view of it, and would no longer share memory with the program's tensor; pass "
           "allow_view=True if nothing relies on that";
  }
  if (call.record().metadata_in_place)
    return "it changes its tensor's shape or storage in place; no other value can replace its result";
  if (!action.allow_view && call.result_is_view()) {
    return "its result is a view, and a value put in its place would no longer share memory with the operator's input; "
           "pass allow_view=True if nothing relies on that";
  }
  return {};
}

ValueInfo TorchBackend::describe(Value value) const { return value.ref ? info_of(ivalue(value)) : ValueInfo(); }

std::string TorchBackend::parameter_name(Value value) const {
  return is_tensor(value) ? pytorch::parameter_name(tensor(value)) : "";
}

std::vector<std::string> TorchBackend::parameter_names(Value list) const {
  std::vector<std::string> names;
  if (!list.ref || !(ivalue(list).isTensorList() || ivalue(list).isOptionalTensorList())) return names;
  for (const c10::IValue& member : ivalue(list).toListRef()) {
    names.push_back(member.isTensor() ? pytorch::parameter_name(member.toTensor()) : "");
  }
  return names;
}

[[gnu::hot]] Backend& backend() {
  static auto* backend = new TorchBackend;
  return *backend;
}

void attach() {
  static bool attached = false;
  if (attached) return;
  register_kernels();
  Engine::attach(backend());
  attached = true;
}

namespace {
// Loading the library attaches the driver. An exception of a static initializer cannot be caught: it is logged, and
// Python's import tries again.
const bool tried = [] {
  try {
    attach();
  } catch (const Error& e) {
    log_warning(e.what());
  }
  return true;
}();
}  // namespace

// ---- amanda/torch.h ------------------------------------------------------------------------------------------------

const c10::IValue& ivalue(Value value) {
  if (!value.ref) throw Error("[torch] this operand is no longer alive");
  if (const auto* operand = dynamic_cast<CompiledOperand*>(python::NativeOperand::of(value))) return operand->value;
  if (python::ObjectOperand::of(value)) {
    throw Error(
        "[torch] this operand is a symbol of a function that is being compiled, without a value; describe() tells its "
        "shape and dtype, and its value is known where routines run");
  }
  return *static_cast<const c10::IValue*>(value.ref);
}

at::Tensor tensor(Value value) {
  const c10::IValue& operand = ivalue(value);
  if (operand.isNone()) return {};
  if (!operand.isTensor()) throw Error(c10::str("[torch] this operand is no tensor but ", operand.tagKind()));
  return operand.toTensor();
}

bool is_tensor(Value value) { return value.ref && ivalue(value).isTensor() && ivalue(value).toTensor().defined(); }

void set(Values& values, size_t i, const c10::IValue& value) { values.set(i, {const_cast<c10::IValue*>(&value)}); }

void set_result(Values& values, size_t i, const c10::IValue& value) {
  values.set_result(i, {const_cast<c10::IValue*>(&value)});
}

}  // namespace amanda::pytorch
