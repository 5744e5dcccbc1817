#include "forward/stack_call.h"

#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "amanda/error.h"
#include "backward/gradient_edge.h"
#include "coverage/coverage_counter.h"
#include "forward/operand_copies.h"
#include "thread/guards.h"
#include "thread/keys.h"

namespace amanda::pytorch {
namespace {

bool same_members(const c10::IValue& a, const c10::IValue& b) {
  if (!a.isTensorList() || !b.isTensorList()) return false;
  const auto as = a.toTensorVector(), bs = b.toTensorVector();
  return std::equal(as.begin(), as.end(), bs.begin(), bs.end(),
                    [](const at::Tensor& one, const at::Tensor& other) { return one.is_same(other); });
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

}  // namespace

StackCall::StackCall(const OpRecord& record, const c10::OperatorHandle& op, c10::DispatchKeySet below,
                     torch::jit::Stack& stack, Identity known)
    : ForwardCall(record, std::move(known)),
      op_(op, below),
      operands_(record, stack),
      in_place_(record, op_, operands_) {}

StackCall::StackCall(const OpRecord& record, const c10::OperatorHandle& op, torch::jit::Stack& stack, OpId id)
    : ForwardCall(record, {.id = id}),
      op_(op, std::nullopt),
      operands_(record, stack),
      in_place_(record, op_, operands_) {}

bool StackCall::has_symbols() const {
  const c10::ArrayRef<c10::IValue> all = operands_.arguments();
  return std::any_of(all.begin(), all.end(), [](const c10::IValue& argument) { return is_symbol(argument); });
}

Value StackCall::get(Side side, size_t position) {
  const c10::ArrayRef<c10::IValue> operands = side == Side::kOutputs ? operands_.results() : operands_.arguments();
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

// ---- the run -------------------------------------------------------------------------------------------------------

void StackCall::begin_run(RunHints hints) {
  if (hints.keep_inputs) operands_.keep_inputs(program_inputs());
  if (record_.viewed) {
    each_tensor(operands_[*record_.viewed], [&](const at::Tensor& viewed) { viewed_ = storage_of(viewed); });
  }
}

void StackCall::run(RunHints hints) {
  const WithProgramModes modes(hints.in_replacement);
  begin_run(hints);
  in_place_.run(hints);
  operands_.ran();
  if (op_.is_programs()) remember_results();
}

void StackCall::skip(RunHints hints) {
  in_place_.skip();
  if (hints.keep_inputs) operands_.keep_inputs(program_inputs());
  if (hints.keep_run_inputs) operands_.keep_run_inputs();
  operands_.skip();
}

void StackCall::finish() {
  if (in_place_.is_trial()) finish_trial();
  in_place_.finish();
}

void StackCall::finish_trial() {
  const InPlaceRun::Trial trial = in_place_.end_trial();
  // If its inner operators were edited, the trial's result is kept, and assigned.
  if (trial.inner == InPlaceRun::Trial::Inner::kEdited) return bind_deferred();
  backward_.restart();
  const c10::IValue shown = in_place_.run_again(trial);
  bind_deferred();
  in_place_.put_edit_back(trial, shown);
}

void StackCall::abandon() noexcept {
  discard();
  using State = BoxedOperands::State;
  const State state = operands_.state();
  const bool ran = state == State::kRan || (state == State::kSkipped && !operands_.missing_result());
  if (!ran || in_place_.is_finished()) return;
  try {
    finish();
  } catch (...) {  // the program gets the first error
  }
}

// An analysis sees no other tool's edits.
std::vector<c10::IValue> StackCall::program_inputs() const {
  std::vector<c10::IValue> inputs = operands_.arguments().vec();
  for (const auto& [position, input] : edited_inputs_) inputs[position] = input;
  return inputs;
}

// ---- backward operators --------------------------------------------------------------------------------------------

void StackCall::watch_backward(bool keep_operands) {
  if (!c10::GradMode::is_enabled()) return;
  backward_.begin(record_, operands_.arguments());
  if (!keep_operands) return operands_.keep_inputs(program_inputs());
  if (edited_inputs_.empty()) return backward_.keep_inputs(operands_.arguments());
  backward_.keep_inputs(program_inputs());
}

std::shared_ptr<ForwardOperands> StackCall::operands_now() const {
  auto operands = std::make_shared<ForwardOperands>();
  operands->keep_inputs(operands_.kept_inputs());
  operands->keep_outputs(operands_.results());
  return operands;
}

bool StackCall::bind_backward(ScopeStack& scopes, const SubscriptionPtr& seen_by, RunSource& runs) {
  if (!in_place_.is_trial()) return bind_now(scopes, seen_by, runs);
  backward_.defer(scopes, seen_by, runs);
  return false;
}

bool StackCall::bind_now(ScopeStack& scopes, const SubscriptionPtr& seen_by, RunSource& runs) {
  if (!backward_.window()) return false;
  if (backward_.window()->is_empty()) return nothing_made();
  return bind_made(scopes, *backward_.window(), backward_.written(), edited_inputs_,
                   backward_.take_operands(operands_.results()), seen_by, runs);
}

void StackCall::bind_deferred() {
  if (auto deferred = backward_.take_deferred()) bind_now(deferred->scopes, deferred->seen_by, *deferred);
}

// ---- views ---------------------------------------------------------------------------------------------------------

bool StackCall::result_is_view() const {
  if (!record_.viewed) return false;
  if (operands_.state() != BoxedOperands::State::kRan) return true;
  bool shared = false;
  for (const OperandTensor& result : result_tensors()) shared |= viewed_ && storage_of(*result.tensor) == viewed_;
  return shared;
}

// For operators that may or may not copy, a run on the program's own operands shows it. If that run would be observed,
// or the operator raises, the schema decides.
bool StackCall::is_viewed(size_t position) {
  if (record_.viewed != position || !operands_.is_ready()) return false;
  if (record_.info.ns != "aten" || !op_.runs_unseen(argument_tensors())) return true;
  const WithoutUserModes unseen;
  const WithoutSavedTensorHooks unpacked;
  const OwnWork uncounted;
  const c10::impl::ExcludeDispatchKeyGuard unobserved(keys().both);
  const c10::AutoGradMode no_grad(false);
  torch::jit::Stack trial = program_inputs();
  const c10::IValue viewed = trial[position];
  try {
    op_.run(trial);
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

// ---- edits ---------------------------------------------------------------------------------------------------------

void StackCall::set(Side side, size_t position, Value value) {
  const c10::IValue& given = *static_cast<const c10::IValue*>(value.ref);
  const bool after = side == Side::kOutputs;
  const c10::Argument& argument = after ? record_.schema.returns()[position] : record_.schema.arguments()[position];
  // A replacement's result has no original result.
  const bool replaced = after && operands_.state() != BoxedOperands::State::kRan;
  c10::IValue old = replaced ? c10::IValue() : operands_[position];
  if (!after && same_members(old, given)) return;
  const OriginalResults* kept = replaced ? RoutineState::kept(type()) : nullptr;
  if (!kept || !kept->is(position, given)) check_stand_in(argument, old, given);
  if (replaced && operands_.is_ready() && record_.result_mutated[position]) {
    old = operands_[*record_.result_mutated[position]];
  }
  if (after) {
    in_place_.check_result(position, old, given);
  } else if (argument.alias_info() && argument.alias_info()->isWrite()) {
    in_place_.check_argument(position, old, given);
  }
  staged_.push_back({side, position, given});
}

bool StackCall::stops_gradient(Side side, size_t position, Value value) {
  if (side == Side::kOutputs && operands_.state() != BoxedOperands::State::kRan) return false;  // nothing to pass it to
  const c10::IValue &old = operands_[position], &given = *static_cast<const c10::IValue*>(value.ref);
  if (given.isTensor()) return old.isTensor() && pytorch::stops_gradient(old.toTensor(), given.toTensor());
  if (!given.isTensorList() || !old.isTensorList()) return false;
  const auto olds = old.toTensorVector(), values = given.toTensorVector();
  for (size_t i = 0; i < std::min(olds.size(), values.size()); ++i) {
    if (pytorch::stops_gradient(olds[i], values[i])) return true;
  }
  return false;
}

void StackCall::put_argument(size_t position, const c10::IValue& value) {
  c10::IValue& slot = operands_[position];
  c10::IValue stand_in = operand_in_place_of(slot, value);
  if (std::none_of(edited_inputs_.begin(), edited_inputs_.end(),
                   [&](const EditedInput& known) { return known.position == position; })) {
    edited_inputs_.push_back({position, slot});
  }
  slot = in_place_.edit_argument(position, slot, std::move(stand_in));
}

void StackCall::put_result(size_t position, const c10::IValue& value) {
  c10::IValue& slot = operands_[position];
  in_place_.edit_result(position, slot);
  slot = operand_in_place_of(slot, value);
}

void StackCall::commit() {
  if (!staged_.empty()) InPlaceRun::count_edits(staged_.size());
  for (const Staged& edit : staged_) {
    if (edit.side == Side::kOutputs) {
      put_result(edit.position, edit.value);
    } else {
      put_argument(edit.position, edit.value);
    }
  }
  staged_.clear();
  if (operands_.state() != BoxedOperands::State::kSkipped) return;
  if (const auto missing = operands_.missing_result()) throw Error(c10::str("it set no result ", *missing));
}

}  // namespace amanda::pytorch
