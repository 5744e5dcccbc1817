#include "stack_call.h"

#include <ATen/core/stack.h>
#include <ATen/ops/clone.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "amanda/error.h"
#include "census.h"
#include "gradient_edge.h"
#include "guards.h"
#include "keys.h"
#include "port.h"

namespace amanda::pytorch {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

at::Tensor private_copy(const at::Tensor& tensor) {
  const OwnWork uncounted;
  c10::impl::ExcludeDispatchKeyGuard unobserved(keys().both);
  at::Tensor copy;
  {
    c10::AutoGradMode no_grad(false);
    copy = tensor.detach().clone();
  }
  return stand_in_for(tensor, copy);
}

// Each member of a list that is to stand for another list, with the gradient edge of the one in its place.
c10::IValue operand_in_place_of(const c10::IValue& old, const c10::IValue& value) {
  if (value.isTensor()) return in_place_of(old.isTensor() ? old.toTensor() : at::Tensor(), value.toTensor());
  if (!value.isList() || !old.isList()) return value;
  const auto olds = old.toListRef(), values = value.toListRef();
  c10::impl::GenericList list(value.toList().elementType());
  for (size_t i = 0; i < values.size(); ++i) {
    const bool tensors = values[i].isTensor() && i < olds.size() && olds[i].isTensor();
    list.push_back(tensors ? c10::IValue(in_place_of(olds[i].toTensor(), values[i].toTensor())) : values[i]);
  }
  return list;
}

c10::IValue private_copy(const c10::IValue& operand) {
  if (operand.isTensor()) return operand.toTensor().defined() ? private_copy(operand.toTensor()) : operand;
  if (!operand.isTensorList()) return operand;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : operand.toTensorVector()) list.push_back(private_copy(tensor));
  return list;
}

void assign(const at::Tensor& target, const at::Tensor& value) {
  if (!target.defined() || !value.defined() || target.is_same(value)) return;
  if (!same_shape(target, value)) {  // only out= may change its shape
    c10::AutoGradMode no_grad(false);
    target.resize_(value.sizes());
  }
  target.copy_(value);  // recorded, where the program records
}

void assign(const c10::IValue& target, const c10::IValue& value) {
  if (target.isTensor() && value.isTensor()) return assign(target.toTensor(), value.toTensor());
  if (!target.isTensorList() || !value.isTensorList()) return;
  const auto targets = target.toTensorVector(), values = value.toTensorVector();
  for (size_t i = 0; i < std::min(targets.size(), values.size()); ++i) assign(targets[i], values[i]);
}

// A leaf that requires a gradient, or a view of one: an error of autograd's. Let it come, or not: operators without a
// formula do not ask.
bool is_refused_in_place(const at::Tensor& target) {
  return target.requires_grad() && (target.is_leaf() || (target.is_view() && target._base().is_leaf()));
}

}  // namespace

StackCall::StackCall(const OpRecord& record, const c10::OperatorHandle& op, c10::DispatchKeySet below,
                     torch::jit::Stack& stack, Identity known)
    : ForwardCall(record, std::move(known)),
      op_(op),
      below_(below),
      stack_(stack),
      base_(stack.size() - record.info.inputs.size()) {}

StackCall::StackCall(const OpRecord& record, const c10::OperatorHandle& op, torch::jit::Stack& stack, OpId id)
    : ForwardCall(record, {.id = id}), op_(op), stack_(stack), base_(stack.size() - record.info.inputs.size()) {}

c10::ArrayRef<c10::IValue> StackCall::arguments() const {
  if (state_ != State::kReady) return inputs_;
  return torch::jit::last(stack_, record_.info.inputs.size());
}

c10::ArrayRef<c10::IValue> StackCall::results() const {
  return torch::jit::last(stack_, state_ == State::kReady ? 0 : record_.info.outputs.size());
}

Value StackCall::get(Point side, size_t position) {
  const c10::ArrayRef<c10::IValue> operands = side == Point::kAfter ? results() : arguments();
  if (position >= operands.size()) return {};
  return {const_cast<c10::IValue*>(&operands[position])};
}

uint64_t StackCall::versions(Point side) const {
  if (record_.asynchronous) return 0;  // its own thread may write while routines look
  if (side == Point::kAfter) return version_sum(result_tensors());
  if (side == Point::kReplace) return version_sum_besides(record_.mutated, argument_tensors());
  return version_sum(argument_tensors());
}

void StackCall::begin_run(RunHints hints) {
  observe_inner_ = hints.observe_inner;
  if (hints.keep_inputs) inputs_ = program_inputs();
  if (record_.viewed) {
    each_tensor(stack_[base_ + *record_.viewed], [&](const at::Tensor& viewed) { viewed_ = storage_of(viewed); });
  }
}

void StackCall::run(RunHints hints) {
  begin_run(hints);
  if (!originals_.empty()) run_with_ = arguments().vec();
  if (hints.edit_result == Edit::kNo || !originals_.empty() || !autograd_will_record_in_place()) {
    redispatch();
  } else if (hints.edit_result == Edit::kYes || record_.info.ns != "aten") {
    run_on_private_copy();
  } else if (runs_unseen()) {
    rehearse();
  } else {
    redispatch();
  }
  state_ = State::kRan;
  if (below_) remember_results();
}

void StackCall::redispatch() {
  std::optional<c10::impl::ExcludeDispatchKeyGuard> unobserved;
  if (!observe_inner_) unobserved.emplace(keys().both);
  if (below_) return op_.redispatchBoxed(*below_, &stack_);
  op_.callBoxed(&stack_);
}

void StackCall::skip(RunHints hints) {
  for (size_t i : record_.mutated) {
    if (!has_original(i)) originals_.emplace_back(i, stack_[base_ + i]);
  }
  if (hints.keep_inputs) inputs_ = program_inputs();
  torch::jit::drop(stack_, record_.info.inputs.size());
  stack_.resize(stack_.size() + record_.info.outputs.size());
  state_ = State::kSkipped;
  result_edited_ = true;
}

// An analysis sees no other tool's edits.
std::vector<c10::IValue> StackCall::program_inputs() const {
  std::vector<c10::IValue> inputs = arguments().vec();
  for (const auto& [position, input] : edited_inputs_) inputs[position] = input;
  return inputs;
}

// ---- backward operators: see grad_map.h ----------------------------------------------------------------------------

void StackCall::watch_backward(bool keep_operands) {
  if (!c10::GradMode::is_enabled()) return;
  made_.emplace();
  if (keep_operands) {
    operands_ = std::make_shared<ForwardOperands>();
    operands_->keep_inputs(program_inputs());
  }
  for (size_t i : record_.mutated) {
    const auto& returned = record_.result_mutated;
    if (std::find(returned.begin(), returned.end(), i) == returned.end()) written_.push_back(arguments()[i]);
  }
}

bool StackCall::bind_backward(ScopeStack& scopes, const SightingPtr& seen_by) {
  if (!rehearsed_.isNone()) {
    bind_when_run_ = seen_by;
    bind_under_ = &scopes;
  }
  if (!made_ || bind_when_run_ || made_->is_empty()) return false;
  if (operands_) operands_->keep_outputs(results());
  return bind_made(scopes, *made_, written_, edited_inputs_, std::move(operands_), seen_by);
}

// ---- in-place operators: see the note in the header ----------------------------------------------------------------

bool StackCall::autograd_will_record_in_place() const {
  if (record_.mutated.size() != 1 || record_.result_mutated.size() != 1 || !record_.result_mutated[0]) return false;
  if (record_.metadata_in_place || !RoutineState::program_records_now()) return false;
  const c10::IValue& target = stack_[base_ + record_.mutated[0]];
  if (!target.isTensor() || !target.toTensor().defined() || target.toTensor().is_inference()) return false;
  if (is_refused_in_place(target.toTensor())) return false;
  const c10::ArrayRef<OperandTensor> tensors = argument_tensors();
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const OperandTensor& operand) { return operand.tensor->requires_grad(); });
}

bool StackCall::runs_unseen() const {
  constexpr c10::DispatchKeySet kPython({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  if (below_ && below_->has_any(kPython)) return false;
  const c10::ArrayRef<OperandTensor> tensors = argument_tensors();
  return std::none_of(tensors.begin(), tensors.end(), [&](const OperandTensor& operand) {
    return operand.tensor->key_set().has_any(
        kPython | c10::DispatchKeySet({c10::DispatchKey::Batched, c10::DispatchKey::BatchedNestedTensor}));
  });
}

bool StackCall::has_original(size_t position) const {
  return std::any_of(originals_.begin(), originals_.end(), [&](const auto& known) { return known.first == position; });
}

void StackCall::run_on_private_copy() {
  const size_t target = record_.mutated[0];
  const at::Tensor original = stack_[base_ + target].toTensor();
  const at::Tensor copy = private_copy(original);
  if (originals_.empty()) originals_.emplace_back(target, original);
  for (size_t i = 0; i < record_.info.inputs.size(); ++i) {  // x.add_(x): both are x
    c10::IValue& argument = stack_[base_ + i];
    if (argument.isTensor() && argument.toTensor().is_same(original)) argument = copy;
  }
  redispatch();
}

void StackCall::rehearse() {
  const WithoutUserModes unseen;
  const WithoutSavedTensorHooks unpacked;
  const OwnWork uncounted;
  run_with_ = arguments().vec();
  if (record_.random) random_before_.emplace(run_with_, stack_[base_ + record_.mutated[0]].toTensor().device());
  run_on_private_copy();
  rehearsed_ = stack_[base_];
}

void StackCall::run_after_rehearsal() {
  if (random_before_) random_before_->put_back();
  const at::Tensor rehearsed = rehearsed_.toTensor(), shown = stack_[base_].toTensor();
  torch::jit::drop(stack_, record_.info.outputs.size());
  stack_.insert(stack_.end(), run_with_.begin(), run_with_.end());
  observe_inner_ = false;
  if (made_) made_.emplace();
  if (result_edited_) {
    run_on_private_copy();
  } else {
    originals_.clear();
    redispatch();
  }
  rehearsed_ = {};
  if (bind_when_run_) bind_backward(*bind_under_, std::exchange(bind_when_run_, nullptr));
  if (!result_edited_) return;
  const at::Tensor result = stack_[base_].toTensor();
  // An edit that took over the edge of what was shown takes over that of the real result; a graph of its own stays.
  const bool straight_through = !rehearsed.requires_grad() || (shown.grad_fn() == rehearsed.grad_fn());
  stack_[base_] = straight_through ? stand_in_for(result, shown) : shown;
}

void StackCall::assign_results() {
  for (auto& [position, original] : originals_) {
    const auto result = std::find(record_.result_mutated.begin(), record_.result_mutated.end(), position);
    if (result != record_.result_mutated.end()) {
      c10::IValue& value = stack_[base_ + (result - record_.result_mutated.begin())];
      assign(original, value);
      value = original;
    } else if (position < run_with_.size()) {  // _foreach_add_ returns nothing: what it wrote is in its argument
      assign(original, run_with_[position]);
    }
  }
}

void StackCall::finish() {
  if (!rehearsed_.isNone()) run_after_rehearsal();
  if (originals_.empty()) return;
  c10::impl::ExcludeDispatchKeyGuard unobserved(keys().both);
  const OwnWork uncounted;
  assign_results();
}

// ---- edits ---------------------------------------------------------------------------------------------------------

bool StackCall::result_is_view() const {
  if (!record_.viewed) return false;
  if (state_ != State::kRan) return true;
  bool shared = false;
  for (const OperandTensor& result : result_tensors()) shared |= viewed_ && storage_of(*result.tensor) == viewed_;
  return shared;
}

void StackCall::set(Point side, size_t position, Value value) {
  const c10::IValue& given = *static_cast<const c10::IValue*>(value.ref);
  const bool after = side == Point::kAfter;
  const c10::Argument& argument = after ? record_.schema.returns()[position] : record_.schema.arguments()[position];
  const bool replaced = after && state_ != State::kRan;  // a replacement's result stands for nothing that ran
  c10::IValue old = replaced ? c10::IValue() : stack_[base_ + position];
  check_stand_in(argument, old, given);
  if (replaced && state_ == State::kReady && record_.result_mutated[position]) {
    old = stack_[base_ + *record_.result_mutated[position]];
  }
  if (after && record_.result_mutated[position]) {
    check_in_place(*record_.result_mutated[position], old, given);
  } else if (!after && argument.alias_info() && argument.alias_info()->isWrite()) {
    check_in_place(position, old, given);
  }
  staged_.push_back({side, position, given});
}

void StackCall::check_in_place(size_t written, const c10::IValue& old, const c10::IValue& given) const {
  if (record_.metadata_in_place) {
    throw Error("it changes its tensor's shape or storage in place; nothing can stand for that");
  }
  if (record_.schema.arguments()[written].is_out()) return;
  const c10::IValue* target = &old;
  for (const auto& [position, original] : originals_) {
    if (position == written) target = &original;
  }
  if (target->isTensor() && given.isTensor() && !same_shape(target->toTensor(), given.toTensor())) {
    throw Error(c10::str("the shape of an in-place operator's tensor can't change: it is ", target->toTensor().sizes(),
                         ", the value has ", given.toTensor().sizes()));
  }
  if (target->isTensor() && given.isTensor() && target->toTensor().device() != given.toTensor().device()) {
    check_stand_in(given.toTensor().scalar_type(), target->toTensor().device(), given.toTensor());
  }
  if (state_ == State::kRan && originals_.empty() && old.isTensor() && old.toTensor().requires_grad() &&
      RoutineState::program_records_now()) {
    throw Error(
        "the routine only looked at this in-place operator before, so it ran in place, and autograd has saved "
        "its result; an edit can't be put in any more. It is prepared for from the next run on");
  }
}

void StackCall::put_argument(size_t position, c10::IValue value) {
  c10::IValue& slot = stack_[base_ + position];
  const bool written = std::find(record_.mutated.begin(), record_.mutated.end(), position) != record_.mutated.end();
  c10::IValue stand_in = operand_in_place_of(slot, value);
  if (std::none_of(edited_inputs_.begin(), edited_inputs_.end(),
                   [&](const EditedInput& known) { return known.position == position; })) {
    edited_inputs_.push_back({position, slot});
  }
  if (written) {
    if (!has_original(position)) originals_.emplace_back(position, slot);
    stand_in = private_copy(stand_in);  // the tool may hold the value it gave
    result_edited_ = true;
  }
  slot = std::move(stand_in);
}

void StackCall::put_result(size_t position, c10::IValue value) {
  c10::IValue& slot = stack_[base_ + position];
  if (record_.result_mutated[position]) {
    const size_t written = *record_.result_mutated[position];
    if (!has_original(written)) originals_.emplace_back(written, slot);
    result_edited_ = true;
  }
  slot = operand_in_place_of(slot, value);
}

void StackCall::commit() {
  for (Staged& edit : staged_) {
    if (edit.side == Point::kAfter) {
      put_result(edit.position, std::move(edit.value));
    } else {
      put_argument(edit.position, std::move(edit.value));
    }
  }
  staged_.clear();
  if (state_ != State::kSkipped) return;
  for (size_t i = 0; i < results().size(); ++i) {
    if (results()[i].isNone() && record_.schema.returns()[i].type()->kind() != c10::TypeKind::OptionalType) {
      throw Error(c10::str("it set no result ", i));
    }
  }
}

}  // namespace amanda::pytorch
