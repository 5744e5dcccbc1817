// torch's pybind11 and Python headers come first.
#include "compiled_call.h"

#include <ATen/core/stack.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "amanda/driver/engine.h"
#include "amanda/error.h"
#include "amanda/torch.h"
#include "base/port.h"
#include "base/stack_value.h"
#include "base/tensor_handle.h"
#include "python/operands.h"
#include "thread/engine_threads.h"
#include "thread/guards.h"

namespace amanda::pytorch {
namespace {

// The graph after the tap was compiled for tensors of this form.
void check_tensor(const c10::IValue& old, const c10::IValue& given) {
  const bool was = old.isTensor() && old.toTensor().defined();
  const bool is = given.isTensor() && given.toTensor().defined();
  if (!was && !is) return;
  if (!was) throw Error("there is no tensor here, which an edit could replace");
  if (!is) throw Error(c10::str(given.isNone() ? "None" : given.tagKind(), " where a tensor is needed"));
  const at::Tensor &from = old.toTensor(), &to = given.toTensor();
  check_stand_in(from.scalar_type(), from.device(), to);
  if (!same_shape(from, to)) throw Error(c10::str("shape ", to.sizes(), " where ", from.sizes(), " is needed"));
}

void check_edit(const Operand& operand, const c10::IValue& old, const c10::IValue& given) {
  if (operand.kind == Operand::Kind::kTensor) return check_tensor(old, given);
  if (operand.kind != Operand::Kind::kList) throw Error("compiled code takes edits of tensors only");
  if (!given.isList()) throw Error(c10::str(given.tagKind(), " where a list of tensors is needed"));
  const auto olds = old.toListRef(), values = given.toListRef();
  if (olds.size() != values.size()) {
    throw Error(c10::str("a list of ", values.size(), " where one of ", olds.size(), " is needed"));
  }
  for (size_t i = 0; i < olds.size(); ++i) check_tensor(olds[i], values[i]);
}

using Nodes = std::vector<port::NodePtr>;

/// The leaves of the graph that are none of `inputs`: they stand for tensors that a routine holds.
Nodes held_leaves(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs) {
  std::unordered_set<torch::autograd::Node*> known;
  for (const at::Tensor& input : inputs) known.insert(torch::autograd::impl::gradient_edge(input).function.get());
  Nodes waiting, leaves;
  for (const at::Tensor& result : results) waiting.push_back(torch::autograd::impl::gradient_edge(result).function);
  while (!waiting.empty()) {
    const port::NodePtr node = std::move(waiting.back());
    waiting.pop_back();
    if (!node || !known.insert(node.get()).second) continue;
    if (dynamic_cast<torch::autograd::AccumulateGrad*>(node.get())) leaves.push_back(node);
    for (const torch::autograd::Edge& edge : node->next_edges()) waiting.push_back(edge.function);
  }
  return leaves;
}

struct Unobserved : NoCopy {
  explicit Unobserved(RoutineMode mode) : state(RoutineState::begin(mode)) {}
  ~Unobserved() { RoutineState::end(state); }
  RoutineState* state;
};

}  // namespace

std::vector<at::Tensor> Recorded::backward(const std::vector<at::Tensor>& gradients) const {
  std::vector<at::Tensor> results, given, inputs;
  std::vector<size_t> numbers;
  for (size_t i = 0; i < results_.size() && i < gradients.size(); ++i) {
    if (!gradients[i].defined() || !results_[i].defined() || !results_[i].requires_grad()) continue;
    results.push_back(results_[i]);
    given.push_back(gradients[i]);
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i].defined() || !inputs_[i].requires_grad()) continue;
    inputs.push_back(inputs_[i]);
    numbers.push_back(i);
  }
  std::vector<at::Tensor> made(inputs_.size());
  if (results.empty() || inputs.empty()) return made;
  const Nodes held = held_leaves(results, inputs);
  torch::autograd::edge_list edges, roots;
  for (const at::Tensor& result : results) roots.push_back(torch::autograd::impl::gradient_edge(result));
  for (const at::Tensor& input : inputs) edges.push_back(torch::autograd::impl::gradient_edge(input));
  for (const auto& leaf : held) edges.emplace_back(leaf, 0);
  const auto found = torch::autograd::Engine::get_default_engine().execute(
      roots, given, /*keep_graph=*/true, /*create_graph=*/false, /*accumulate_grad=*/false, edges);
  for (size_t i = 0; i < numbers.size(); ++i) made[numbers[i]] = found[i];
  const c10::AutoGradMode no_grad(false);
  for (size_t i = 0; i < held.size(); ++i) (*held[i])({found[inputs.size() + i]});
  return made;
}

CompiledCall::CompiledCall(const Slot& slot, const Recorded* recorded, const Tap* tap)
    : OperatorCall(slot.op()), slot_(slot), recorded_(recorded), tap_(tap), has_outputs_(false) {
  for (Side side : {Side::kInputs, Side::kOutputs}) operands(side).resize(size(side));
}

CompiledCall::CompiledCall(const Slot& slot, c10::ArrayRef<at::Tensor> tensors, c10::ArrayRef<int64_t> numbers,
                           const Recorded* recorded)
    : OperatorCall(slot.op()),
      slot_(slot),
      recorded_(recorded),
      has_outputs_(!slot.taps().empty() && !slot.replaces()) {
  for (Side side : {Side::kInputs, Side::kOutputs}) {
    const std::vector<Operand>& known = slot.operands(side);
    operands(side).resize(known.size());
    if (side == Side::kOutputs && !has_outputs_) break;
    for (size_t i = 0; i < known.size(); ++i) {
      operands(side)[i].value = known[i].value(tensors, numbers, slot.argument(side, i).type());
    }
  }
}

void CompiledCall::run_taps(Run* run) {
  if (slot_.taps().empty()) return this->run({});
  const CurrentScopes open = current_scopes();  // a backward pass may run when its scopes are closed, or switched off
  bool began = false;
  for (const TapPtr& tap : slot_.taps()) {
    tap_ = tap.get();
    if (!open) {
      if (tap->point() == Point::kReplace) this->run({});
      continue;
    }
    const bool ambient = tap->differentiable() || tap->point() == Point::kReplace;
    const Unobserved state(ambient ? RoutineMode::kAmbient : RoutineMode::kIsolated);
    RunStatePtr shared;
    if (run && tap->shares_run()) {
      shared =
          run->state(op().forward_operator(), phase(), tap->point() == Point::kBefore && !std::exchange(began, true));
    }
    Engine::run(*tap, *this, open.get(), shared.get());
  }
}

at::Tensor CompiledCall::tensor(size_t number) const {
  if (number >= slot_.positions().size()) return {};  // it only orders the node
  const std::optional<TensorPosition>& position = slot_.positions()[number];
  if (!position) return {};
  const c10::IValue& value = operands(position->side)[position->position].value;
  const c10::IValue one = value.isList() ? value.toListRef()[position->member] : value;
  return one.isTensor() ? one.toTensor() : at::Tensor();
}

// ---- operands -------------------------------------------------------------------------------------------------------

Value CompiledCall::get(Side side, size_t position) {
  if (position >= size(side) || (side == Side::kOutputs && !has_outputs_)) return {};
  if (slot_.operands(side)[position].kind == Operand::Kind::kHidden && operands(side)[position].value.isNone()) {
    return {};
  }
  return operands(side)[position].value.isNone() ? Value{} : operands(side)[position].handle();
}

std::string CompiledCall::detail(Detail which) {
  if (which != Detail::kIsRecompute) return OperatorCall::detail(which);
  // A partitioner puts recomputed operators into the graph that runs backward.
  return phase() == Phase::kForward && port::inside_backward() ? "recompute" : "";
}

uint64_t CompiledCall::versions(Side side) const {
  std::vector<c10::IValue> values;
  for (const CompiledOperand& operand : operands(side)) values.push_back(operand.value);
  return version_sum(pytorch::tensors_of(values));
}

std::vector<at::Tensor> CompiledCall::tensors_of(Side side) const {
  std::vector<at::Tensor> tensors(slot_.positions().size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (slot_.positions()[i] && slot_.positions()[i]->side == side) tensors[i] = tensor(i);
  }
  return tensors;
}

// ---- edits ----------------------------------------------------------------------------------------------------------

void CompiledCall::set(Side side, size_t position, Value value) {
  if (position >= size(side)) throw Error(c10::str("there are only ", size(side)));
  const c10::IValue given = value.ref ? ivalue(value) : c10::IValue();
  if (side == Side::kOutputs && tap_ && tap_->point() == Point::kReplace) {
    check_result(position, given);
  } else {
    check_edit(slot_.operands(side)[position], operands(side)[position].value, given);
  }
  held_.push_back({side, position, given});
}

// The compiled code after the operator relies on the form of its results.
void CompiledCall::check_result(size_t position, const c10::IValue& given) const {
  const Operand& operand = slot_.operands(Side::kOutputs)[position];
  if (operand.kind == Operand::Kind::kHidden) return;
  const auto check_one = [&](const Operand& one, const c10::IValue& result) {
    const Form* form = one.kind == Operand::Kind::kTensor ? slot_.form(one.index) : nullptr;
    if (!result.isTensor() || !result.toTensor().defined()) {
      if (phase() == Phase::kBackward && result.isNone()) return;
      throw Error(c10::str(result.isNone() ? "None" : result.tagKind(), " where a tensor is needed"));
    }
    if (!form) return;
    const at::Tensor& tensor = result.toTensor();
    bool fits = tensor.scalar_type() == form->dtype && static_cast<size_t>(tensor.dim()) == form->sizes.size();
    for (size_t i = 0; fits && i < form->sizes.size(); ++i) {
      fits = !form->sizes[i] || *form->sizes[i] == tensor.size(i);
    }
    if (fits) return;
    std::string sizes;
    for (const auto& size : form->sizes) sizes += (sizes.empty() ? "" : ", ") + (size ? std::to_string(*size) : "?");
    throw Error(c10::str(tensor.scalar_type(), " ", tensor.sizes(), " where ", form->dtype, " [", sizes,
                         "] is needed: the code after it is compiled for that"));
  };
  if (operand.kind != Operand::Kind::kList) return check_one(operand, given);
  if (!given.isList() || given.toListRef().size() != operand.members.size()) {
    throw Error(c10::str("a list of ", operand.members.size(), " tensors is needed"));
  }
  for (size_t i = 0; i < operand.members.size(); ++i) check_one(operand.members[i], given.toListRef()[i]);
}

void CompiledCall::commit() {
  if (held_.empty()) return;
  for (Edit& edit : held_) {
    operands(edit.side)[edit.position].value = std::move(edit.value);
    has_outputs_ |= edit.side == Side::kOutputs;
  }
  held_.clear();
}

void CompiledCall::skip(RunHints) {
  for (size_t i = 0; i < size(Side::kOutputs); ++i) {
    const bool is_set = slot_.operands(Side::kOutputs)[i].kind == Operand::Kind::kHidden ||
                        std::any_of(held_.begin(), held_.end(), [&](const Edit& edit) {
                          return edit.side == Side::kOutputs && edit.position == i;
                        });
    if (!is_set) throw Error(c10::str("result ", i, " was not set"));
  }
}

// ---- the original ---------------------------------------------------------------------------------------------------

void CompiledCall::run(RunHints) {
  if (tap_ && tap_->point() != Point::kReplace) return;
  const Unobserved state(RoutineMode::kAmbient);
  phase() == Phase::kForward ? run_forward() : run_backward();
  has_outputs_ = true;
}

void CompiledCall::run_forward() {
  torch::jit::Stack stack;
  for (const CompiledOperand& input : inputs_) stack.push_back(input.value);
  op().op.callBoxed(stack);
  for (size_t i = 0; i < outputs_.size(); ++i) outputs_[i].value = stack[i];
}

void CompiledCall::run_backward() {
  if (!recorded_) throw Error("[compile] " + backend().info(type()).name + " has nothing recorded to run");
  std::vector<at::Tensor> all = tensors_of(Side::kInputs);
  all.resize(recorded_->num_results());  // a node's tensors: first the results' gradients, then those of arguments
  const std::vector<at::Tensor> made = recorded_->backward(all);
  std::vector<at::Tensor> tensors(recorded_->num_results());
  tensors.insert(tensors.end(), made.begin(), made.end());
  for (size_t i = 0; i < outputs_.size(); ++i) {
    outputs_[i].value = slot_.operands(Side::kOutputs)[i].value(tensors, {}, slot_.argument(Side::kOutputs, i).type());
  }
}

// ---- Python ---------------------------------------------------------------------------------------------------------

PyObject* CompiledCall::to_python(Side side, size_t position) {
  if (position >= size(side)) return Py_NewRef(Py_None);
  return python::show(operands(side)[position].value, slot_.argument(side, position));
}

void CompiledCall::from_python(Side side, size_t position, PyObject* object, const std::function<void(Value)>& put) {
  c10::IValue value = python::take(object, slot_.argument(side, position));
  put({&value});
}

bool CompiledCall::is_list(Side side, size_t position) {
  return python::element(slot_.argument(side, position).type())->kind() == c10::TypeKind::ListType;
}

bool CompiledCall::is_operand(size_t position, PyObject* object) {
  const c10::IValue& value = inputs_[position].value;
  if (!value.isTensor() || !THPVariable_Check(object)) return false;
  const at::Tensor &operand = value.toTensor(), &shown = THPVariable_Unpack(object);
  return operand.requires_grad() == shown.requires_grad() && node_behind(operand) == node_behind(shown);
}

PyObject* CompiledCall::call_original(PyObject* args) {
  CompiledCall call(slot_, recorded_, tap_);
  const Py_ssize_t given = PyTuple_GET_SIZE(args);
  for (Py_ssize_t i = 0; i < given; ++i) {
    call.inputs_[i].value = python::take(PyTuple_GET_ITEM(args, i), slot_.argument(Side::kInputs, i));
  }
  {
    py::gil_scoped_release no_gil;
    Engine::call_original(call);
  }
  return call.results_to_python();
}

void CompiledCall::raise_error() {
  python_error error;
  error.persist();  // stores the current error, so that it survives threads and guards
  throw error;
}

}  // namespace amanda::pytorch
