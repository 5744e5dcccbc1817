#include "forward/in_place_run.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "amanda/error.h"
#include "backward/gradient_edge.h"
#include "base/tensor_handle.h"
#include "coverage/coverage_counter.h"
#include "forward/operand_copies.h"
#include "thread/guards.h"
#include "thread/keys.h"

namespace amanda::pytorch {
namespace {

thread_local constinit uint64_t edits_here = 0;  // that routines made on this thread

bool is_one_of(const std::vector<size_t>& positions, size_t position) {
  return std::find(positions.begin(), positions.end(), position) != positions.end();
}

// A leaf that requires a gradient, or a view of one: autograd raises an error, except for operators without a formula.
// Leave that to autograd.
bool is_refused_in_place(const at::Tensor& target) {
  return target.requires_grad() && (target.is_leaf() || (target.is_view() && target._base().is_leaf()));
}

}  // namespace

// ---- the run -------------------------------------------------------------------------------------------------------

[[gnu::hot]] void InPlaceRun::run(RunHints hints) {
  const bool is_private = !originals_.empty();  // a tool has edited what it writes to
  if (is_private) run_with_ = operands_.arguments().vec();
  if (hints.edit_result == Edit::kNo || is_private || !autograd_will_record()) return run_operator(hints);
  if (hints.edit_result == Edit::kYes || record_.info.ns != "aten") return run_on_private_copy(hints);
  if (op_.runs_unseen(operands_.argument_tensors())) return run_on_trial(hints);
  run_operator(hints);
}

void InPlaceRun::run_operator(RunHints hints) {
  if (hints.keep_run_inputs) operands_.keep_run_inputs();
  std::optional<c10::impl::ExcludeDispatchKeyGuard> unobserved;
  if (!hints.observe_inner) unobserved.emplace(keys().both);
  op_.run(operands_.stack());
}

bool InPlaceRun::autograd_will_record() const {
  if (record_.mutated.size() != 1 || record_.result_mutated.size() != 1 || !record_.result_mutated[0]) return false;
  if (record_.metadata_in_place || !RoutineState::program_records_now()) return false;
  const c10::IValue& target = operands_[record_.mutated[0]];
  if (!target.isTensor() || !target.toTensor().defined() || target.toTensor().is_inference()) return false;
  if (is_refused_in_place(target.toTensor())) return false;
  const c10::ArrayRef<OperandTensor> tensors = operands_.argument_tensors();
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const OperandTensor& operand) { return operand.tensor->requires_grad(); });
}

void InPlaceRun::run_on_private_copy(RunHints hints) {
  const size_t target = record_.mutated[0];
  const at::Tensor given = operands_[target].toTensor();
  const at::Tensor copy = private_copy(given);
  if (originals_.empty()) originals_.emplace_back(target, given);
  for (size_t i = 0; i < record_.info.inputs.size(); ++i) {  // x.add_(x): both arguments are x
    c10::IValue& argument = operands_[i];
    if (argument.isTensor() && argument.toTensor().is_same(given)) argument = copy;
  }
  run_operator(hints);
}

void InPlaceRun::run_on_trial(RunHints hints) {
  const WithoutUserModes unseen;
  const WithoutSavedTensorHooks unpacked;
  const OwnWork uncounted;
  run_with_ = operands_.arguments().vec();
  Trial trial;
  if (record_.random) trial.random.emplace(run_with_, operands_[record_.mutated[0]].toTensor().device());
  const uint64_t edits = edits_here;
  run_on_private_copy(hints);
  trial.result = operands_[0];
  if (hints.observe_inner) trial.inner = Trial::Inner::kShown;
  if (edits_here != edits) trial.inner = Trial::Inner::kEdited;
  trial_ = std::move(trial);
}

InPlaceRun::Trial InPlaceRun::end_trial() {
  trial_->edited = std::exchange(stage_, Stage::kFinished) == Stage::kEdited;
  return *std::exchange(trial_, std::nullopt);
}

c10::IValue InPlaceRun::run_again(const Trial& trial) {
  if (trial.random) trial.random->put_back();
  c10::IValue shown = operands_[0];
  operands_.put_back(run_with_);
  std::optional<OwnWork> shown_before;
  if (trial.inner == Trial::Inner::kShown) shown_before.emplace();
  if (trial.edited) {
    run_on_private_copy({});
  } else {
    originals_.clear();
    run_operator({});
  }
  return shown;
}

void InPlaceRun::put_edit_back(const Trial& trial, const c10::IValue& shown) {
  if (!trial.edited) return;
  const at::Tensor &edited = shown.toTensor(), &tried = trial.result.toTensor(), result = operands_[0].toTensor();
  // An edit that took over the edge of the trial's result takes over the edge of the real result; an edit with its own
  // graph keeps it.
  const bool straight_through = !tried.requires_grad() || node_behind(edited) == node_behind(tried);
  operands_[0] = straight_through ? stand_in_for(result, edited) : edited;
}

void InPlaceRun::skip() {
  for (size_t i : record_.mutated) keep_original(i, operands_[i]);
  note_edit();
}

// ---- the program's tensors -----------------------------------------------------------------------------------------

const c10::IValue* InPlaceRun::original(size_t position) const {
  for (const auto& [known, value] : originals_) {
    if (known == position) return &value;
  }
  return nullptr;
}

void InPlaceRun::keep_original(size_t position, const c10::IValue& value) {
  if (!original(position)) originals_.emplace_back(position, value);
}

void InPlaceRun::assign() {
  c10::impl::ExcludeDispatchKeyGuard unobserved(keys().both);
  const OwnWork uncounted;
  assign_results();
  assign_undeclared();
}

void InPlaceRun::assign_results() {
  for (auto& [position, original] : originals_) {
    const auto result = std::find(record_.result_mutated.begin(), record_.result_mutated.end(), position);
    if (result != record_.result_mutated.end()) {
      c10::IValue& value = operands_[result - record_.result_mutated.begin()];
      pytorch::assign(original, value);
      value = original;
    } else if (position < run_with_.size()) {  // _foreach_add_ returns nothing: its result is in its argument
      pytorch::assign(original, run_with_[position]);
    }
  }
}

void InPlaceRun::assign_undeclared() {
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

// ---- edits ---------------------------------------------------------------------------------------------------------

void InPlaceRun::check_argument(size_t position, const c10::IValue& old, const c10::IValue& given) const {
  check(position, old, given);
  check_members(old, given);
}

void InPlaceRun::check_result(size_t position, const c10::IValue& old, const c10::IValue& given) const {
  if (record_.result_mutated[position]) check(*record_.result_mutated[position], old, given);
}

void InPlaceRun::check(size_t written, const c10::IValue& old, const c10::IValue& given) const {
  if (record_.metadata_in_place) {
    throw Error("it changes its tensor's shape or storage in place; no other value can replace its result");
  }
  if (record_.schema.arguments()[written].is_out()) return;
  const c10::IValue* kept = original(written);
  const c10::IValue& target = kept ? *kept : old;
  if (target.isTensor() && given.isTensor() && !same_shape(target.toTensor(), given.toTensor())) {
    throw Error(c10::str("the shape of an in-place operator's tensor can't change: it is ", target.toTensor().sizes(),
                         ", the value has ", given.toTensor().sizes()));
  }
  if (target.isTensor() && given.isTensor() && target.toTensor().device() != given.toTensor().device()) {
    check_stand_in(given.toTensor().scalar_type(), target.toTensor().device(), given.toTensor());
  }
  if (operands_.state() == BoxedOperands::State::kRan && originals_.empty() && old.isTensor() &&
      old.toTensor().requires_grad() && RoutineState::program_records_now()) {
    throw Error(
        "the routine only looked at this in-place operator before, so it ran in place, and autograd has saved "
        "its result; an edit can't be put in any more. It is prepared for from the next run on");
  }
}

c10::IValue InPlaceRun::edit_argument(size_t position, const c10::IValue& old, c10::IValue given) {
  if (is_one_of(record_.mutated, position)) {
    keep_original(position, old);
    note_edit();
    return with_same_members(old, private_copy(given));  // the tool may hold the value it gave
  }
  const bool undeclared = is_one_of(record_.undeclared, position);
  if (undeclared && given.isTensor() && given.toTensor().defined()) return keep_undeclared(old, given);
  return given;
}

void InPlaceRun::edit_result(size_t position, const c10::IValue& old) {
  if (!record_.result_mutated[position]) return;
  keep_original(*record_.result_mutated[position], old);
  note_edit();
}

void InPlaceRun::note_edit() {
  if (stage_ == Stage::kUnedited) stage_ = Stage::kEdited;
}

void InPlaceRun::count_edits(size_t count) { edits_here += count; }

c10::IValue InPlaceRun::keep_undeclared(const c10::IValue& old, const c10::IValue& given) {
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

}  // namespace amanda::pytorch
