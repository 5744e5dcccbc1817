#include "backward/node_call.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/input_metadata.h>

#include "amanda/error.h"
#include "amanda/torch.h"
#include "backward/gradient_edge.h"
#include "backward/node_override.h"
#include "base/python_hooks.h"
#include "base/stack_value.h"
#include "identity/named_tensors.h"
#include "thread/guards.h"

namespace amanda::pytorch {

// ---- as analysis sees it --------------------------------------------------------------------------------------------

Backend& NodeCall::backend() const { return pytorch::backend(); }

size_t NodeCall::size(Side side) const { return side == Side::kOutputs ? node_.num_outputs() : node_.num_inputs(); }

namespace {

Value show(c10::SmallVectorImpl<c10::IValue>& shown, size_t count, size_t position, c10::IValue value) {
  if (shown.size() < count) shown.resize(count);
  shown[position] = std::move(value);
  return {&shown[position]};
}

}  // namespace

Value NodeCall::get(Side at, size_t position) {
  const variable_list& gradients = side(at);
  if (position >= gradients.size()) return {};
  return show(rest().shown[at == Side::kOutputs], gradients.size(), position, gradients[position]);
}

size_t NodeCall::forward_size(Side at) const {
  return owner_.forward->operands ? owner_.forward->operands->size(at) : 0;
}

Value NodeCall::forward_get(Side at, size_t position) {
  if (position >= forward_size(at)) return {};
  return show(rest().shown_forward[at == Side::kOutputs], forward_size(at), position,
              owner_.forward->operands->get(at, position));
}

std::string NodeCall::detail(Detail which) {
  if (which == Detail::kIsRecompute) return "";
  std::string found = python_hooks.describe ? python_hooks.describe(owner_.forward->raw_path, which) : "";
  if (!found.empty() || which != Detail::kModulePath || !has_named_tensors()) return found;
  return remembered_path(owner_.forward->id);
}

uint64_t NodeCall::versions(Side at) const {
  // AccumulateGrad has given them to the leaf: another thread's backward pass may add to them at any time.
  if (type_.accumulates && ran_ && at == Side::kInputs) return 0;
  const variable_list& gradients = at == Side::kOutputs ? grad_inputs_ : grad_outputs_;
  uint64_t sum = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const c10::VariableVersion& version = gradients[i].unsafeGetTensorImpl()->version_counter();
    if (version.enabled()) sum += version.current_version() * version_weight(i);  // inference tensors have none
  }
  return sum;
}

// ---- as it runs -----------------------------------------------------------------------------------------------------

namespace {

thread_local NodeCall::Active* innermost = nullptr;

}  // namespace

variable_list run_node(Node& node, variable_list&& grad_outputs) {
  variable_list grad_inputs = run_original(node, std::move(grad_outputs));
  torch::autograd::validate_outputs(node.next_edges(), grad_inputs, [&](const std::string& reason) {
    return "Function " + node.name() + " returned an " + reason;
  });
  return grad_inputs;
}

NodeCall::Active::Active(NodeCall& call) : call_(call), here_(innermost), outer_(std::exchange(here_, this)) {}
NodeCall::Active::~Active() { here_ = outer_; }

NodeCall* NodeCall::current(OpType type, OpId id) {
  for (const Active* active = innermost; active; active = active->outer_) {
    if (active->call_.type() == type && active->call_.id() == id) return &active->call_;
  }
  return nullptr;
}

variable_list NodeCall::call_original(variable_list grad_outputs) {
  if (grad_outputs.size() != node_.num_inputs()) {
    throw Error(c10::str("[torch] ", type_.info.name, " takes ", node_.num_inputs(), " grad_outputs, got ",
                         grad_outputs.size()));
  }
  NodeCall call(node_, type_, owner_);
  if (rest_ && rest_->original) call.runs(rest_->original);
  call.take(std::move(grad_outputs));
  Engine::call_original(call);
  return call.give_grad_inputs();
}

void NodeCall::run(RunHints hints) {
  const WithProgramModes modes(hints.in_replacement);
  if (ran_) {
    grad_inputs_ = hints.in_replacement ? *ran_ : std::move(*ran_);  // a replacement that fails runs it once more
  } else {
    variable_list gradients = grad_outputs_;
    const bool wrapped = rest_ && rest_->original;
    grad_inputs_ = wrapped ? rest_->original(std::move(gradients)) : run_node(node_, std::move(gradients));
  }
  replaced_ = false;
}

void NodeCall::skip(RunHints) {
  grad_inputs_.assign(node_.num_outputs(), at::Tensor());
  replaced_ = true;
}

// ---- edits ----------------------------------------------------------------------------------------------------------

void NodeCall::set(Side at, size_t position, Value value) {
  const c10::IValue& given = *static_cast<const c10::IValue*>(value.ref);
  if (!given.isNone() && !given.isTensor()) throw Error(c10::str("got ", given.tagKind(), " where a Tensor is needed"));
  const at::Tensor tensor = given.isNone() ? at::Tensor() : given.toTensor();
  check(at, position, tensor);
  rest().staged.push_back({at, position, tensor});
}

// The engine checks what a node returns before hooks run, and not again.
void NodeCall::check(Side at, size_t position, const at::Tensor& value) const {
  if (position >= size(at)) throw Error(c10::str("there are only ", size(at)));
  if (!value.defined()) return;
  const variable_list& present = at == Side::kOutputs ? grad_inputs_ : grad_outputs_;
  if (position < present.size() && present[position].defined()) {
    const at::Tensor& old = present[position];
    check_stand_in(old.scalar_type(), old.device(), value);
    if (!old.is_nested() && !old.sym_sizes().equals(value.sym_sizes())) {
      throw Error(c10::str("a gradient of shape ", value.sym_sizes(), " cannot replace one of ", old.sym_sizes()));
    }
    return;
  }
  const torch::autograd::InputMetadata* needed = nullptr;
  if (at == Side::kInputs) {
    needed = &node_.input_metadata(position);
  } else if (const torch::autograd::Edge& edge = node_.next_edge(position); edge.is_valid()) {
    needed = &edge.function->input_metadata(edge.input_nr);
  }
  if (!needed || needed->was_default_constructed()) return;  // no node uses it
  check_stand_in(c10::typeMetaToScalarType(needed->dtype()), needed->device(), value);
  if (!needed->is_nested_tensor() && !needed->is_same_shape(value)) {
    throw Error(
        c10::str("a gradient of shape ", value.sym_sizes(), " cannot replace one of ", needed->shape_as_dim_vector()));
  }
}

void NodeCall::commit() {
  if (!rest_) return;
  for (Staged& edit : rest_->staged) {
    at::Tensor& slot = side(edit.side)[edit.position];
    slot = replaced_ && edit.side == Side::kOutputs ? std::move(edit.value) : in_place_of(slot, edit.value);
  }
  rest_->staged.clear();
}

}  // namespace amanda::pytorch
