#include "executor.h"

#include <fmt/format.h>

#include "amanda/base/pool.h"
#include "amanda/error.h"
#include "amanda/log.h"
#include "amanda/own_results.h"
#include "op_name.h"
#include "routine_guard.h"
#include "scope_stack.h"

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

constexpr const char* kRatherThanChange = "return a new tensor instead, or call context.may_mutate() at analysis";

std::string place(const ScheduledAction& action, OpSite& site) {
  return fmt::format("{} {} {}", action.routine->name(), name_of(action.point), op_place(site));
}

void tell_gradient_stops(const ScheduledAction& action, OpSite& site, const std::string& operand) {
  if (action.told.exchange(true)) return;
  log_warning_once(
      fmt::format("[action] {}: it put a tensor of another shape in place of {}, which requires a gradient: the "
                  "gradient stops there. Schedule the routine with differentiable=True, and it is recorded",
                  describe(action, site), operand));
}

}  // namespace

std::string describe(const ScheduledAction& action, OpSite& site) {
  return fmt::format("{}: {}", action.tool->name(), place(action, site));
}

ReplacementFrame::ReplacementFrame(Execution& execution, const Plan& plan, size_t index, OpCall& call)
    : execution(execution), plan(plan), index(index), call(call), outer(current_replacement) {
  current_replacement = this;
}
ReplacementFrame::~ReplacementFrame() { current_replacement = outer; }
ReplacementFrame* ReplacementFrame::current() { return current_replacement; }

// ---- what routines share --------------------------------------------------------------------------------------------

const RunStatePtr& Execution::local_state() {
  if (!local_) local_ = std::allocate_shared<RunState>(PoolAllocator<RunState>());
  return local_;
}

const RunStatePtr& Execution::run_state() {
  if (run_) return run_;
  if (call_.phase() == Phase::kBackward) run_ = local_ && local_->forward() ? local_->forward() : call_.run_state();
  kept_ = run_ != nullptr;
  if (!run_) run_ = local_state();
  return run_;
}

void Execution::count(const ScheduledAction& action) {
  if (!counts_ || call_.phase() == Phase::kBackward) return;
  RunState& state = *run_state();
  const uint64_t scope = action.scope->serial();
  if (!state.index(scope)) state.set_index({scope, action.counter->next(action.scope->entries())});
}

void Execution::count(RunState& state, const ScopeStack& scopes, OpSite& forward) {
  const RecordKey key{forward.backend().ids(), forward.id()};
  for (ScopeState* scope : scopes.scopes()) {
    if (!state.index(scope->serial()))
      state.set_index({scope->serial(), scope->run_counters().get(key)->next(scope->entries())});
  }
}

const RunStatePtr& Execution::keep_run(const ScopeStack& scopes) {
  RunState& state = *run_state();
  if (!std::exchange(kept_, true)) count(state, scopes, call_);
  return run_;
}

void Execution::settle_kept() {
  try {
    RoutineGuard unobserved(call_.backend(), RoutineMode::kIsolated);
    run_->settle(call_);
  } catch (const std::exception& error) {
    log_warning(fmt::format("[run] of {}: {}", op_name(call_), error.what()));
  }
}

// ---- actions --------------------------------------------------------------------------------------------------------

inline bool Execution::runs(const ScheduledAction& action) const {
  if (action.removed || action.status->stopped) return false;
  return !scopes_ || scopes_->contains(action.scope);
}

inline void Execution::run_action(const ScheduledAction& action) {
  if (!runs(action)) return;
  try {
    Values values(*this, call_, action);
    (*action.routine)(values);
    values.check_unchanged();
    call_.commit();
    if (!action.looked.load(std::memory_order_relaxed) && call_.records()) action.looked = true;
  } catch (...) {
    handle_failure(action);
  }
}

[[gnu::hot]] void Execution::run_point(const Plan& plan, Point point) {
  const std::vector<ScheduledPtr>& actions = plan.at(point);
  for (size_t i = 0; i < actions.size();) {
    const RoutineMode mode = actions[i]->mode;
    RoutineGuard unobserved(call_.backend(), mode);
    for (; i < actions.size() && actions[i]->mode == mode; ++i) run_action(*actions[i]);
  }
}

void Execution::handle_failure(const ScheduledAction& action) {
  call_.discard();
  const std::exception_ptr error = std::current_exception();
  if (!survives(action, error)) throw;
  action.scope->stop(call_.backend(), *action.tool, describe(action, call_), error);
}

bool Execution::survives(const ScheduledAction& action, const std::exception_ptr& error) const {
  return action.scope->survives(error) && action.routine->is_failure(error) && !call_.backend().is_programs(error);
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
      action.scope->stop(call.backend(), *action.tool, describe(action, call), error);
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
  if (!frame.produced && !action.may_mutate) {
    const uint64_t difference = call.unmutated_versions() - versions - frame.written;
    if (difference != 0)
      values.fail(fmt::format("{}; {}", told_change(call, Side::kInputs, difference), kRatherThanChange));
  }
  operator_failed_ = false;  // or the routine handled its failure
  replaced_ = true;
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

[[gnu::hot]] size_t Values::size() const {
  return action_.all_positions ? call_.size(side_of(action_.point)) : action_.positions.size();
}
[[gnu::hot]] size_t Values::position(size_t i) const { return action_.all_positions ? i : action_.positions.at(i); }
Value Values::operator[](size_t i) const {
  watch();
  return call_.get(side_of(action_.point), position(i));
}

size_t Values::num_inputs() const { return action_.shows_all ? call_.size(Side::kInputs) : action_.shows.size(); }
size_t Values::input_position(size_t i) const {
  if (i >= num_inputs()) throw std::out_of_range(fmt::format("[action] input {} of {}", i, num_inputs()));
  return action_.shows_all ? i : action_.shows[i];
}
Value Values::input(size_t i) const {
  const size_t at = input_position(i);
  watch();
  return call_.get(Side::kInputs, at);
}

[[gnu::always_inline]] inline std::pair<uint64_t, uint64_t> Values::versions() const {
  const uint64_t shown = action_.shows_any() ? call_.versions(Side::kInputs) : 0;
  return {call_.versions(side_of(action_.point)), shown};
}

[[gnu::hot]] void Values::watch() const {
  if (!versions_ && !action_.may_mutate && action_.point != Point::kReplace) versions_ = versions();
}

[[gnu::hot]] void Values::check_unchanged() const {
  if (!versions_) return;
  const auto [own, shown] = versions();
  const auto [own_before, shown_before] = *versions_;
  const Side side = own != own_before ? side_of(action_.point) : Side::kInputs;
  const uint64_t difference = own != own_before ? own - own_before : shown - shown_before;
  if (difference != 0) fail(fmt::format("{}; {}", told_change(call_, side, difference), kRatherThanChange));
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
    if (call_.stops_gradient(side_of(action_.point), position(i), value)) {
      tell_gradient_stops(action_, call_, operand(i));
    }
    if (action_.point == Point::kAfter) execution_.replaced_ = true;
  } catch (const Error& reason) {
    fail(fmt::format("{}: {}", operand(i), reason.what()));
  }
}

const Execution& Execution::of(const Values& values) { return values.execution_; }

bool has_own_results(const Values& values) { return Execution::of(values).has_own_results(); }

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
  RunHints hints = execution_.hints_;
  hints.observe_inner = false;
  hints.edit_result = Edit::kYes;
  execution_.run_wrapped(frame->plan, replacement_, call_, hints);
  frame->produced = true;
}

RunState& Values::run_state() {
  if (action_.counter) execution_.count(action_);
  return *execution_.run_state();
}
RunState& Values::local_state() { return *execution_.local_state(); }
std::optional<uint64_t> Values::run_index() { return run_state().index(action_.scope->serial()); }
[[gnu::hot]] Point Values::point() const { return action_.point; }
const Tool& Values::tool() const { return *action_.tool; }
const OpInfo& Values::op() const { return call_.backend().info(call_.type()); }

std::string Values::where() const { return place(action_, call_); }
std::string Values::operand(size_t i) const { return operand_at(call_, side_of(action_.point), position(i)); }

void Values::fail(const std::string& what) const {
  throw Error(fmt::format("[action] {}: {}", describe(action_, call_), what));
}

}  // namespace amanda
