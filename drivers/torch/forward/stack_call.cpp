#include "forward/stack_call.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/stack.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/isclose.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <unordered_map>

#include "amanda/error.h"
#include "backward/gradient_edge.h"
#include "base/port.h"
#include "base/tensor_handle.h"
#include "coverage/coverage_counter.h"
#include "thread/guards.h"
#include "thread/keys.h"

namespace amanda::pytorch {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// The number of elements of its storage that a strided tensor covers, starting at its first element, gaps included.
int64_t extent_of(const at::Tensor& tensor) {
  int64_t extent = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) extent += (tensor.size(i) - 1) * tensor.stride(i);
  return extent;
}

// clone() makes tensors with gaps, or whose elements share memory, contiguous.
bool clone_changes_strides(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kWrappers(
      {c10::DispatchKey::Python, c10::DispatchKey::Batched, c10::DispatchKey::BatchedNestedTensor});
  constexpr int64_t kMostGaps = 16;  // a column of a large matrix: the gaps would be most of the copy
  return tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_quantized() && tensor.has_storage() &&
         !tensor.key_set().has_any(kFunctorchWrappers | kWrappers) &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && !tensor.is_non_overlapping_and_dense() &&
         tensor.numel() > 0 && !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor() &&
         extent_of(tensor) <= kMostGaps * tensor.numel();
}

at::Tensor copy_with_strides(const at::Tensor& tensor) {
  const at::Tensor detached = tensor.detach();
  if (!clone_changes_strides(tensor)) return detached.clone();
  const at::Tensor copy = detached.as_strided({extent_of(tensor)}, {1}).clone();
  // No view: autograd refuses in-place operators on views that were made without gradient recording.
  return copy.as_strided(tensor.sizes(), tensor.strides(), 0).variable_data();
}

at::Tensor private_copy(const at::Tensor& tensor) {
  const OwnWork uncounted;
  c10::impl::ExcludeDispatchKeyGuard unobserved(keys().both);
  at::Tensor copy;
  {
    c10::AutoGradMode no_grad(false);
    copy = copy_with_strides(tensor);
  }
  return stand_in_for(tensor, copy);
}

// Bit for bit, except for the sign of zero and the kinds of NaN.
bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  if (!a.defined() || !b.defined() || !same_shape(a, b)) return false;
  const OwnWork uncounted;
  c10::impl::ExcludeDispatchKeyGuard unobserved(keys().both);
  c10::AutoGradMode no_grad(false);
  const bool has_nan = a.is_floating_point() || a.is_complex();
  return at::isclose(a.detach(), b.detach(), 0.0, 0.0, has_nan).all().item<bool>();
}

bool is_one_of(const std::vector<size_t>& positions, size_t position) {
  return std::find(positions.begin(), positions.end(), position) != positions.end();
}

thread_local constinit uint64_t edits_here = 0;  // that routines made on this thread

bool same_members(const c10::IValue& a, const c10::IValue& b) {
  if (!a.isTensorList() || !b.isTensorList()) return false;
  const auto as = a.toTensorVector(), bs = b.toTensorVector();
  return std::equal(as.begin(), as.end(), bs.begin(), bs.end(),
                    [](const at::Tensor& one, const at::Tensor& other) { return one.is_same(other); });
}

// The index of the first member of the list that is the same tensor.
size_t first_of(const std::vector<at::Tensor>& members, size_t i) {
  for (size_t j = 0; j < i; ++j) {
    if (members[j].is_same(members[i])) return j;
  }
  return i;
}

// Each member of a list that replaces another list takes over the gradient edge of the member that it replaces.
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

// Members that are one tensor in `old` must be one in the result too: the operator writes to it through each of them.
c10::IValue with_same_members(const c10::IValue& old, const c10::IValue& list) {
  if (!old.isTensorList() || !list.isTensorList()) return list;
  const auto olds = old.toTensorVector();
  auto members = list.toTensorVector();
  for (size_t i = 0; i < std::min(olds.size(), members.size()); ++i) members[i] = members[first_of(olds, i)];
  return c10::List<at::Tensor>(members);
}

void assign(const at::Tensor& target, const at::Tensor& value) {
  if (!target.defined() || !value.defined() || target.is_same(value)) return;
  if (!same_shape(target, value)) {  // only out= may change its shape
    c10::AutoGradMode no_grad(false);
    target.resize_(value.sizes());
  }
  target.copy_(value);  // recorded, if the program records
}

void assign(const c10::IValue& target, const c10::IValue& value) {
  if (target.isTensor() && value.isTensor()) return assign(target.toTensor(), value.toTensor());
  if (!target.isTensorList() || !value.isTensorList()) return;
  const auto targets = target.toTensorVector(), values = value.toTensorVector();
  for (size_t i = 0; i < std::min(targets.size(), values.size()); ++i) {
    if (first_of(targets, i) == i) assign(targets[i], values[i]);
  }
}

// A leaf that requires a gradient, or a view of one: autograd raises an error, except for operators without a formula.
// Leave that to autograd.
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

bool StackCall::has_symbols() const {
  const c10::ArrayRef<c10::IValue> all = arguments();
  return std::any_of(all.begin(), all.end(), [](const c10::IValue& argument) { return is_symbol(argument); });
}

c10::ArrayRef<c10::IValue> StackCall::arguments() const {
  if (state_ != State::kReady) return shows_run_inputs_ ? run_inputs_ : inputs_;
  return torch::jit::last(stack_, record_.info.inputs.size());
}

c10::ArrayRef<c10::IValue> StackCall::results() const {
  return torch::jit::last(stack_, state_ == State::kReady ? 0 : record_.info.outputs.size());
}

Value StackCall::get(Side side, size_t position) {
  const c10::ArrayRef<c10::IValue> operands = side == Side::kOutputs ? results() : arguments();
  if (position >= operands.size()) return {};
  return {const_cast<c10::IValue*>(&operands[position])};
}

uint64_t StackCall::versions(Side side) const {
  if (record_.asynchronous) return 0;  // its own thread may write while routines look
  if (side == Side::kOutputs) return version_sum(result_tensors());
  return version_sum(argument_tensors());
}

uint64_t StackCall::unmutated_versions() const {
  if (record_.asynchronous) return 0;  // as above
  return version_sum_besides(record_.mutated, argument_tensors());
}

void StackCall::begin_run(RunHints hints) {
  observe_inner_ = hints.observe_inner;
  keeps_run_inputs_ = hints.keep_run_inputs;
  if (hints.keep_inputs) inputs_ = program_inputs();
  if (record_.viewed) {
    each_tensor(stack_[base_ + *record_.viewed], [&](const at::Tensor& viewed) { viewed_ = storage_of(viewed); });
  }
}

void StackCall::run(RunHints hints) {
  const WithProgramModes modes(hints.in_replacement);
  begin_run(hints);
  if (!originals_.empty()) run_with_ = arguments().vec();
  if (hints.edit_result == Edit::kNo || !originals_.empty() || !autograd_will_record_in_place()) {
    redispatch();
  } else if (hints.edit_result == Edit::kYes || record_.info.ns != "aten") {
    run_on_private_copy();
  } else if (runs_unseen()) {
    trial_run();
  } else {
    redispatch();
  }
  state_ = State::kRan;
  if (below_) remember_results();
}

void StackCall::redispatch() {
  keep_run_inputs();
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
  keeps_run_inputs_ = hints.keep_run_inputs;
  keep_run_inputs();
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

// ---- backward operators: see backward/node_window.h ----------------------------------------------------------------

void StackCall::watch_backward(bool keep_operands) {
  if (!c10::GradMode::is_enabled()) return;
  made_.emplace();
  if (keep_operands) {
    operands_ = std::make_shared<ForwardOperands>();
    if (edited_inputs_.empty()) {
      operands_->keep_inputs(arguments());
    } else {
      operands_->keep_inputs(program_inputs());
    }
  } else {
    inputs_ = program_inputs();
  }
  for (size_t i : record_.mutated) {
    const auto& returned = record_.result_mutated;
    if (std::find(returned.begin(), returned.end(), i) == returned.end()) written_.push_back(arguments()[i]);
  }
}

std::shared_ptr<ForwardOperands> StackCall::operands_now() const {
  auto operands = std::make_shared<ForwardOperands>();
  operands->keep_inputs(inputs_);
  operands->keep_outputs(results());
  return operands;
}

namespace {

struct KnownRun final : RunSource {
  explicit KnownRun(RunStatePtr run) : run(std::move(run)) {}
  RunStatePtr run_state() override { return run; }
  const RunStatePtr run;
};

}  // namespace

bool StackCall::bind_backward(ScopeStack& scopes, const SubscriptionPtr& seen_by, RunSource& runs) {
  if (!trial_result_.isNone()) {
    bind_when_run_ = seen_by;
    bind_under_ = &scopes;
    trial_run_state_ = runs.run_state();
  }
  if (!made_ || bind_when_run_) return false;
  if (made_->is_empty()) return nothing_made();
  if (operands_) operands_->keep_outputs(results());
  return bind_made(scopes, *made_, written_, edited_inputs_, std::move(operands_), seen_by, runs);
}

void StackCall::bind_after_trial() {
  if (!bind_when_run_) return;
  KnownRun run(std::move(trial_run_state_));
  bind_backward(*bind_under_, std::exchange(bind_when_run_, nullptr), run);
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
  for (size_t i = 0; i < record_.info.inputs.size(); ++i) {  // x.add_(x): both arguments are x
    c10::IValue& argument = stack_[base_ + i];
    if (argument.isTensor() && argument.toTensor().is_same(original)) argument = copy;
  }
  redispatch();
}

void StackCall::trial_run() {
  const WithoutUserModes unseen;
  const WithoutSavedTensorHooks unpacked;
  const OwnWork uncounted;
  run_with_ = arguments().vec();
  if (record_.random) random_before_.emplace(run_with_, stack_[base_ + record_.mutated[0]].toTensor().device());
  const uint64_t edits = edits_here;
  run_on_private_copy();
  trial_result_ = stack_[base_];
  inner_shown_ = observe_inner_;
  inner_edited_ = edits_here != edits;
}

void StackCall::run_after_trial() {
  if (inner_edited_) {  // its inner operators were edited: the trial's result is kept, and assigned
    trial_result_ = {};
    return bind_after_trial();
  }
  if (random_before_) random_before_->put_back();
  const at::Tensor trial_result = trial_result_.toTensor(), shown = stack_[base_].toTensor();
  torch::jit::drop(stack_, record_.info.outputs.size());
  stack_.insert(stack_.end(), run_with_.begin(), run_with_.end());
  observe_inner_ = false;
  std::optional<OwnWork> shown_before;
  if (inner_shown_) shown_before.emplace();
  if (made_) made_.emplace();
  if (result_edited_) {
    run_on_private_copy();
  } else {
    originals_.clear();
    redispatch();
  }
  trial_result_ = {};
  bind_after_trial();
  if (!result_edited_) return;
  const at::Tensor result = stack_[base_].toTensor();
  // An edit that took over the edge of the trial's result takes over the edge of the real result; an edit with its own
  // graph keeps it.
  const bool straight_through = !trial_result.requires_grad() || node_behind(shown) == node_behind(trial_result);
  stack_[base_] = straight_through ? stand_in_for(result, shown) : shown;
}

void StackCall::assign_results() {
  for (auto& [position, original] : originals_) {
    const auto result = std::find(record_.result_mutated.begin(), record_.result_mutated.end(), position);
    if (result != record_.result_mutated.end()) {
      c10::IValue& value = stack_[base_ + (result - record_.result_mutated.begin())];
      assign(original, value);
      value = original;
    } else if (position < run_with_.size()) {  // _foreach_add_ returns nothing: its result is in its argument
      assign(original, run_with_[position]);
    }
  }
}

void StackCall::finish() {
  finished_ = true;
  if (!trial_result_.isNone()) run_after_trial();
  if (originals_.empty() && undeclared_.empty()) return;
  c10::impl::ExcludeDispatchKeyGuard unobserved(keys().both);
  const OwnWork uncounted;
  assign_results();
  assign_undeclared();
}

void StackCall::assign_undeclared() {
  c10::AutoGradMode no_grad(false);
  for (const UndeclaredWrite& write : undeclared_) {
    const at::Tensor &original = write.original.toTensor(), &copy = write.copy.toTensor();
    if (!original.defined() || same_values(write.given.toTensor(), copy)) continue;
    // Most of these operators do not increment version counters, so the tensors that autograd has saved must stay
    // valid.
    const bool counted = version_sum(tensors_of(write.copy)) != write.version;
    (counted ? original.detach() : original.variable_data()).copy_(copy);
  }
}

void StackCall::abandon() noexcept {
  discard();
  const bool ran = state_ == State::kRan || (state_ == State::kSkipped && has_all_results());
  if (!ran || finished_) return;
  try {
    finish();
  } catch (...) {  // the program gets the first error
  }
}

// ---- edits ---------------------------------------------------------------------------------------------------------

bool StackCall::result_is_view() const {
  if (!record_.viewed) return false;
  if (state_ != State::kRan) return true;
  bool shared = false;
  for (const OperandTensor& result : result_tensors()) shared |= viewed_ && storage_of(*result.tensor) == viewed_;
  return shared;
}

// For operators that may or may not copy, a run on the program's own operands shows it. If that run would be observed,
// or the operator raises, the schema decides.
bool StackCall::is_viewed(size_t position) {
  if (record_.viewed != position || state_ != State::kReady) return false;
  if (record_.info.ns != "aten" || !runs_unseen()) return true;
  const WithoutUserModes unseen;
  const WithoutSavedTensorHooks unpacked;
  const OwnWork uncounted;
  const c10::impl::ExcludeDispatchKeyGuard unobserved(keys().both);
  const c10::AutoGradMode no_grad(false);
  torch::jit::Stack trial = program_inputs();
  const c10::IValue viewed = trial[position];
  try {
    below_ ? op_.redispatchBoxed(*below_, &trial) : op_.callBoxed(&trial);
  } catch (const std::exception&) {
    return true;
  }
  bool shared = false;
  each_tensor(viewed, [&](const at::Tensor& operand) {
    for (const OperandTensor& result : tensors_of(trial)) {
      shared |= !operand.has_storage() || storage_of(*result.tensor) == storage_of(operand);
    }
  });
  return shared;
}

void StackCall::set(Side side, size_t position, Value value) {
  const c10::IValue& given = *static_cast<const c10::IValue*>(value.ref);
  const bool after = side == Side::kOutputs;
  const c10::Argument& argument = after ? record_.schema.returns()[position] : record_.schema.arguments()[position];
  const bool replaced = after && state_ != State::kRan;  // a replacement's result has no original result
  c10::IValue old = replaced ? c10::IValue() : stack_[base_ + position];
  if (!after && same_members(old, given)) return;
  const OriginalResults* kept = replaced ? RoutineState::kept(type()) : nullptr;
  if (!kept || !kept->is(position, given)) check_stand_in(argument, old, given);
  if (replaced && state_ == State::kReady && record_.result_mutated[position]) {
    old = stack_[base_ + *record_.result_mutated[position]];
  }
  if (after && record_.result_mutated[position]) {
    check_in_place(*record_.result_mutated[position], old, given);
  } else if (!after && argument.alias_info() && argument.alias_info()->isWrite()) {
    check_in_place(position, old, given);
    check_members(old, given);
  }
  staged_.push_back({side, position, given});
}

void StackCall::check_in_place(size_t written, const c10::IValue& old, const c10::IValue& given) const {
  if (record_.metadata_in_place) {
    throw Error("it changes its tensor's shape or storage in place; no other value can replace its result");
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

void StackCall::check_members(const c10::IValue& old, const c10::IValue& given) const {
  if (!old.isTensorList() || !given.isTensorList()) return;
  const auto olds = old.toTensorVector(), values = given.toTensorVector();
  if (olds.size() != values.size())
    throw Error(c10::str("the operator writes to a list of ", olds.size(), " tensors, got ", values.size()));
  std::unordered_map<const c10::StorageImpl*, std::vector<size_t>> by_storage;
  for (size_t i = 0; i < olds.size(); ++i) {
    if (!olds[i].defined() || !olds[i].has_storage()) continue;
    std::vector<size_t>& others = by_storage[storage_of(olds[i])];
    for (size_t j : others) {
      if (olds[i].is_same(olds[j])) {
        if (same_values(values[i], values[j])) break;
        throw Error(c10::str("its members ", j, " and ", i,
                             " are one tensor, which the operator writes to; the values for them differ"));
      }
      const auto overlap = at::get_overlap_status(olds[i], olds[j]);
      if (overlap == at::MemOverlapStatus::Full || overlap == at::MemOverlapStatus::Partial) {
        throw Error(c10::str("its members ", j, " and ", i,
                             " share memory that the operator writes to; other values cannot replace them"));
      }
    }
    others.push_back(i);
  }
}

void StackCall::put_argument(size_t position, c10::IValue value) {
  c10::IValue& slot = stack_[base_ + position];
  const bool written = is_one_of(record_.mutated, position);
  c10::IValue stand_in = operand_in_place_of(slot, value);
  if (std::none_of(edited_inputs_.begin(), edited_inputs_.end(),
                   [&](const EditedInput& known) { return known.position == position; })) {
    edited_inputs_.push_back({position, slot});
  }
  if (written) {
    if (!has_original(position)) originals_.emplace_back(position, slot);
    stand_in = with_same_members(slot, private_copy(stand_in));  // the tool may hold the value it gave
    result_edited_ = true;
  } else if (is_one_of(record_.undeclared, position) && stand_in.isTensor() && stand_in.toTensor().defined()) {
    stand_in = keep_undeclared(slot, stand_in);
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

c10::IValue StackCall::keep_undeclared(const c10::IValue& old, const c10::IValue& given) {
  c10::IValue copy = private_copy(given.toTensor());
  const uint64_t version = version_sum(tensors_of(copy));
  for (UndeclaredWrite& write : undeclared_) {
    if (!write.copy.is(old)) continue;  // from an earlier edit
    write.given = given, write.copy = copy, write.version = version;
    return copy;
  }
  undeclared_.push_back({old, given, copy, version});
  return copy;
}

bool StackCall::has_all_results() const {
  for (size_t i = 0; i < results().size(); ++i) {
    if (results()[i].isNone() && record_.schema.returns()[i].type()->kind() != c10::TypeKind::OptionalType)
      return false;
  }
  return true;
}

void StackCall::commit() {
  edits_here += staged_.size();
  for (Staged& edit : staged_) {
    if (edit.side == Side::kOutputs) {
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
