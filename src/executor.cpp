#include "executor.h"

#include <fmt/format.h>

#include <algorithm>

#include "amanda/error.h"
#include "op_name.h"
#include "routine_guard.h"
#include "scope_state.h"

namespace amanda {
namespace {

const char* name_of(Point point) {
  switch (point) {
    case Point::kBefore: return "before";
    case Point::kReplace: return "replacing";
    case Point::kAfter: return "after";
  }
  return "";
}

thread_local ReplacementFrame* current_replacement = nullptr;

}  // namespace

std::string describe(const ScheduledAction& action, const OpSite& site) {
  return fmt::format("{}: {} {} {}", action.tool->name(), action.routine->name(), name_of(action.point), op_name(site));
}

ReplacementFrame::ReplacementFrame(Execution& execution, const Plan& plan, size_t index, OpCall& call)
    : execution(execution), plan(plan), index(index), call(call), outer(current_replacement) {
  current_replacement = this;
}
ReplacementFrame::~ReplacementFrame() { current_replacement = outer; }
ReplacementFrame* ReplacementFrame::current() { return current_replacement; }

struct RunState::Slots : std::vector<std::pair<const Tool*, std::any>> {};
RunState::RunState() = default;
RunState::~RunState() = default;

std::any& Execution::run_slot(const Tool& tool) {
  if (state_ && !state_->slots_) state_->slots_ = std::make_unique<RunState::Slots>();
  auto& slots = state_ ? *state_->slots_ : run_slots_;
  for (auto& [owner, slot] : slots) {
    if (owner == &tool) return slot;
  }
  return slots.emplace_back(&tool, std::any()).second;
}

bool Execution::runs(const ScheduledAction& action) const {
  if (action.removed || action.status->stopped) return false;
  return !scopes_ || scopes_->contains(action.scope);
}

void Execution::run_point(const Plan& plan, Point point) {
  const std::vector<ScheduledPtr>& actions = plan.at(point);
  for (size_t i = 0; i < actions.size();) {
    const RoutineMode mode = actions[i]->mode;
    RoutineGuard unobserved(call_.backend(), mode);
    for (; i < actions.size() && actions[i]->mode == mode; ++i) run_action(*actions[i]);
  }
}

void Execution::run_action(const ScheduledAction& action) {
  if (!runs(action)) return;
  try {
    Values values(*this, call_, action);
    (*action.routine)(values);
    values.check_unchanged();
    call_.commit();
    if (!action.looked.load(std::memory_order_relaxed) && call_.records()) action.looked = true;
  } catch (...) {
    call_.discard();
    const std::exception_ptr error = std::current_exception();
    if (!survives(action, error)) throw;
    action.scope->stop(*action.tool, describe(action, call_), error);
  }
}

bool Execution::survives(const ScheduledAction& action, const std::exception_ptr& error) const {
  return action.scope->survives(error) && action.routine->is_failure(error) && !call_.backend().is_programs(error);
}

void Execution::run_operator(const Plan& plan, bool observe_inner) {
  hints_ = {observe_inner, plan.after_pending(), plan.edits_result()};
  run_wrapped(plan, plan.replacements().size(), call_, hints_);
}

void Execution::run_wrapped(const Plan& plan, size_t index, OpCall& call, RunHints hints) {
  for (size_t i = index; i-- > 0;) {
    const ScheduledAction& action = *plan.replacements()[i];
    if (!runs(action)) continue;
    const uint64_t versions = call.versions(Side::kInputs);
    try {
      RoutineGuard unobserved(call.backend(), RoutineMode::kAmbient);
      return run_replacement(plan, i, call);
    } catch (...) {
      call.discard();
      const std::exception_ptr error = std::current_exception();
      if (operator_failed_ || !survives(action, error)) throw;
      action.scope->stop(*action.tool, describe(action, call), error);
      // Otherwise the original would run on changed inputs, or on none.
      if (call.has_results() || call.versions(Side::kInputs) != versions) throw;
    }
  }
  operator_failed_ = true;
  hints.in_replacement = index < plan.replacements().size();
  call.run(hints);
  operator_failed_ = false;
}

void Execution::run_replacement(const Plan& plan, size_t index, OpCall& call) {
  const ScheduledAction& action = *plan.replacements()[index];
  ReplacementFrame frame(*this, plan, index, call);
  Values values(*this, call, action, index);
  const uint64_t versions = action.may_mutate ? 0 : call.unmutated_versions();
  (*action.routine)(values);
  if (!frame.produced && !action.may_mutate && call.unmutated_versions() != versions + frame.written) {
    values.fail(
        "it changed, in place, a tensor it was given; return a new one, or call context.may_mutate() at analysis");
  }
  operator_failed_ = false;  // or the routine handled its failure
  try {
    if (!frame.produced) call.skip(hints_);
    call.commit();
  } catch (const Error& reason) {
    values.fail(reason.what());
  }
}

// ---- Values: what a routine reaches ---------------------------------------------------------------------------------

Values::Values(Execution& execution, OpCall& call, const ScheduledAction& action, size_t replacement)
    : execution_(execution), call_(call), action_(action), replacement_(replacement) {}

size_t Values::size() const {
  return action_.all_positions ? call_.size(side_of(action_.point)) : action_.positions.size();
}
size_t Values::position(size_t i) const { return action_.all_positions ? i : action_.positions.at(i); }
Value Values::operator[](size_t i) const {
  watch();
  return call_.get(side_of(action_.point), position(i));
}

void Values::watch() const {
  if (!versions_ && !action_.may_mutate && action_.point != Point::kReplace)
    versions_ = call_.versions(side_of(action_.point));
}

void Values::check_unchanged() const {
  if (!versions_ || call_.versions(side_of(action_.point)) == *versions_) return;
  fail("it changed, in place, a tensor it was given; return a new one, or call context.may_mutate() at analysis");
}

void Values::set(size_t i, Value value) {
  if (action_.point == Point::kReplace)
    fail("set() is for inserted routines; a replacement gives its result by set_result()");
  action_.edited.store(true, std::memory_order_relaxed);
  try {
    if (action_.kind == RoutineKind::kObserve)
      throw Error("the routine was inserted to look only (RoutineKind::kObserve)");
    std::string reason = call_.backend().refusal(call_, action_, position(i));
    if (!reason.empty()) throw Error(reason);
    call_.set(side_of(action_.point), position(i), value);
  } catch (const Error& reason) {
    const auto& names = action_.point == Point::kAfter ? op().outputs : op().inputs;
    const size_t at = position(i);
    const std::string name = at < names.size() && !names[at].empty() ? " (" + names[at] + ")" : "";
    fail(fmt::format("{} {}{}: {}", operand_name(call_.phase(), side_of(action_.point)), at, name, reason.what()));
  }
}

size_t Values::num_results() const { return call_.size(Side::kOutputs); }

Value Values::result(size_t i) const {
  if (!ReplacementFrame::current() || !ReplacementFrame::current()->produced) {
    fail("result() works in a replacement, after call_original()");
  }
  return call_.get(Side::kOutputs, i);
}

void Values::set_result(size_t i, Value value) {
  if (action_.point != Point::kReplace) fail("set_result() is for replacements; use set()");
  try {
    call_.set(Side::kOutputs, i, value);
  } catch (const Error& reason) {
    fail(fmt::format("result {}: {}", i, reason.what()));
  }
}

void Values::call_original() {
  ReplacementFrame* frame = ReplacementFrame::current();
  if (action_.point != Point::kReplace || !frame || &frame->call != &call_) fail("call_original() is for replacements");
  if (frame->produced) fail("call_original() was called twice");
  execution_.run_wrapped(frame->plan, replacement_, call_, {false, execution_.hints_.keep_inputs, Edit::kYes});
  frame->produced = true;
}

std::any& Values::run_slot() { return execution_.run_slot(*action_.tool); }
Point Values::point() const { return action_.point; }
const Tool& Values::tool() const { return *action_.tool; }
const OpInfo& Values::op() const { return call_.backend().info(call_.type()); }

void Values::fail(const std::string& what) const {
  throw Error(fmt::format("[action] {}: {}", describe(action_, call_), what));
}

}  // namespace amanda
