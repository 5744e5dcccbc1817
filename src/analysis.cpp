#include "analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "amanda/base/wait_hooks.h"
#include "amanda/error.h"
#include "backends.h"
#include "context_session.h"
#include "generation.h"
#include "op_name.h"
#include "plan.h"
#include "routine_guard.h"

namespace amanda {
namespace {

/// Waits until no other thread analyzes the record, then holds it for this one.
class AnalysisLock {
 public:
  AnalysisLock(RecordTable& records, Record& record) : records_(records), record_(record) {
    std::unique_lock lock(records_.mutex().native());
    if (record_.analysed_by != std::thread::id{}) {
      lock.unlock();
      const WaitHooks& hooks = wait_hooks();
      void* token = hooks.before ? hooks.before() : nullptr;
      lock.lock();
      records_.analysed().wait(lock, [&] { return record_.analysed_by == std::thread::id{}; });
      record_.analysed_by = std::this_thread::get_id();
      lock.unlock();
      if (hooks.after) hooks.after(token);
      return;
    }
    record_.analysed_by = std::this_thread::get_id();
  }
  ~AnalysisLock() {
    std::lock_guard lock(records_.mutex());
    record_.analysed_by = {};
    records_.analysed().notify_all();
  }

 private:
  RecordTable& records_;
  Record& record_;
};

using Versions = std::array<uint64_t, 2>;  // of the inputs and the outputs, as far as the analysis can reach them

Versions versions_at(const OpCall* call, Point point) {
  if (!call) return {};
  return {call->versions(Side::kInputs), point == Point::kAfter ? call->versions(Side::kOutputs) : 0};
}

void check_unchanged(const Tool& tool, OpSite& site, const Versions& before, const Versions& now) {
  for (Side side : {Side::kInputs, Side::kOutputs}) {
    const uint64_t difference = now[static_cast<size_t>(side)] - before[static_cast<size_t>(side)];
    if (difference == 0) continue;
    throw Error(fmt::format("[analysis] {}: the analysis of {}: {}; change a copy, or call context.may_mutate()",
                            tool.name(), op_place(site), told_change(site, side, difference)));
  }
}

}  // namespace

AnalysisSession::AnalysisSession(const ScopeStack& scopes, OpSite& site, const Visibility& seen)
    : scopes_(scopes),
      tables_(scopes.share_tables()),
      site_(site),
      info_(site.backend().info(site.forward_type())),
      seen_(seen) {
  const Backend& backend = site.backend();
  const std::span<Backend* const> attached = attached_backends();
  if (backend.index() < attached.size() && attached[backend.index()] == &backend) return;
  // The backend's index belongs to another driver, and its records would, too.
  throw Error(fmt::format("[engine] the driver '{}' showed {} and was never attached; call Engine::attach first",
                          backend.name_space(), op_name(site)));
}

PlanPtr AnalysisSession::run(Point point, const OpCall* running) {
  tables_ = scopes_.share_tables();
  if (point == Point::kBefore && site_.phase() == Phase::kForward) note_filters();
  for (const ActiveTool& active : tables_->tools) {
    if (!is_active(active)) continue;
    RecordPtr record;
    for (size_t i = 0; i < active.registrations->size(); ++i) {
      const Registration& registration = (*active.registrations)[i];
      if (registration.options.require_outputs != (point == Point::kAfter) || !applies(active, registration)) continue;
      if (!record) record = record_of(active);
      analyse(active, *record, i, point, running);
    }
    if (point == Point::kBefore) note_known(active);
  }
  return merge();
}

// Where the tool counts anew, what it analysed before is counted when it runs.
void AnalysisSession::note_known(const ActiveTool& active) const {
  if (active.tool->has_analysed(site_.phase(), site_.id())) return;
  const RecordPtr record = existing_record(*active.scope);
  if (!record) return;
  bool is_known = false;
  for (size_t i = 0; i < active.registrations->size() && !is_known; ++i) {
    if (applies(active, (*active.registrations)[i])) is_known = is_done(active, *record, i);
  }
  if (is_known) active.tool->note_analysed(site_.phase(), site_.id(), shows_symbols());
}

bool AnalysisSession::is_done(const ActiveTool& active, Record& record, size_t registration) const {
  std::lock_guard lock(active.scope->records().mutex());
  return scopes_.cache_enabled() && record.of(active.tool, registration).holds(shows_symbols());
}

// Operators that a tool analysed before its counts were reset remain to be noted.
bool AnalysisSession::pending(Point point) const {
  for (const ActiveTool& active : tables_->tools) {
    if (!is_active(active)) continue;
    const RecordPtr record = existing_record(*active.scope);
    for (size_t i = 0; i < active.registrations->size(); ++i) {
      const Registration& registration = (*active.registrations)[i];
      if (registration.options.require_outputs != (point == Point::kAfter) || !applies(active, registration)) continue;
      if (!record || !is_done(active, *record, i)) return true;
      if (!active.tool->has_analysed(site_.phase(), site_.id())) return true;
    }
  }
  return false;
}

bool AnalysisSession::is_active(const ActiveTool& active) const {
  return (seen_.any() & active.bit) && !active.scope->stopped(active.tool);
}

// True if this routine of the tool asks for the forward operator.
bool AnalysisSession::asks(const ActiveTool& active, const Registration& registration) const {
  if (!asks_for_type(active, registration)) return false;
  return registration.options.modules.matches_all() || registration.options.modules.matches(module_path());
}

bool AnalysisSession::asks_for_type(const ActiveTool& active, const Registration& registration) const {
  const InstOptions& options = registration.options;
  if (options.ops.is_on_demand()) return is_demanded(active);
  if (!options.ops.matches(info_)) return false;
  return (seen_.outer & active.bit) || (options.nested && (seen_.nested & active.bit));
}

// A dependent may ask in certain modules only. Its operator types alone are then not enough to decide.
bool AnalysisSession::is_demanded(const ActiveTool& active) const {
  if (!(seen_.demanded & active.bit)) return false;
  if (!tables_->any_modules) return true;
  return std::any_of(tables_->tools.begin(), tables_->tools.end(), [&](const ActiveTool& other) {
    if (&other == &active || !(active.dependents & other.bit) || !is_active(other)) return false;
    return std::any_of(other.registrations->begin(), other.registrations->end(),
                       [&](const Registration& registration) { return asks(other, registration); });
  });
}

const std::string& AnalysisSession::module_path() const {
  if (!module_path_) module_path_ = site_.detail(Detail::kModulePath);
  return *module_path_;
}

// A tool may be in several scopes of the stack, and is active in the outermost.
void AnalysisSession::note_filters() const {
  for (const ActiveTool& active : tables_->tools) {
    if (!is_active(active)) continue;
    for (size_t i = 0; i < active.registrations->size(); ++i) {
      const Registration& registration = (*active.registrations)[i];
      const bool everywhere = registration.options.modules.matches_all();
      if (everywhere && registration.options.ops.patterns().empty()) continue;  // no filter
      if (!asks_for_type(active, registration)) continue;
      const bool matches = everywhere || asks(active, registration);
      for (ScopeState* scope : scopes_.scopes()) {
        const std::vector<Tool*>& tools = scope->tools();
        if (std::find(tools.begin(), tools.end(), active.tool) == tools.end()) continue;
        scope->filter_use().note(active.tool, i, matches, matches ? std::string() : module_path());
      }
    }
  }
}

bool AnalysisSession::applies(const ActiveTool& active, const Registration& registration) const {
  return registration.options.backward == (site_.phase() == Phase::kBackward) && asks(active, registration);
}

// An action that a forward analysis scheduled applies to each backward operator that has its positions.
bool AnalysisSession::takes_from_forward(const ScheduledAction& action) const {
  if (action.phase != Phase::kBackward || !site_.made_by_forward()) return false;
  auto has_all = [&](const std::vector<size_t>& positions, Side side) {
    const size_t count = site_.size(side);
    return std::all_of(positions.begin(), positions.end(), [count](size_t at) { return at < count; });
  };
  return has_all(action.positions, side_of(action.point)) && has_all(action.shows, Side::kInputs);
}

RecordPtr AnalysisSession::record_of(const ActiveTool& active) {
  RecordPtr record = known_record(*active.scope);
  if (!record) {
    record = active.scope->records().get(key(site_.id()), [&] {
      auto made = std::make_shared<Record>();
      made->context.self_ = std::shared_ptr<OpContext>(made, &made->context);
      made->context.scope_ = active.scope->weak_from_this();
      made->context.record_ = made.get();
      copy_keys(*active.scope, made->context);
      if (site_.phase() == Phase::kForward) active.scope->records().note_place(info_);
      return made;
    });
    records_.emplace_back(active.scope, record);
  }
  return record;
}

RecordPtr AnalysisSession::existing_record(ScopeState& scope) const {
  RecordPtr record = known_record(scope);
  return record || site_.id() == 0 ? record : scope.records().find(key(site_.id()));
}

RecordPtr AnalysisSession::known_record(ScopeState& scope) const {
  for (const auto& [owner, record] : records_) {
    if (owner == &scope) return record;
  }
  return nullptr;
}

/// A backward operator's context starts with the keys of its forward operator's context; an inner scope's, with those
/// of the outer scope's.
void AnalysisSession::copy_keys(ScopeState& scope, OpContext& context) const {
  const bool backward = site_.phase() == Phase::kBackward;
  if (backward) {
    if (RecordPtr forward = scope.records().find(key(site_.forward_id()))) return copy_keys(scope, forward, context);
  }
  RecordPtr from;
  ScopeState* owner = nullptr;
  for (ScopeState* outer : scopes_.scopes()) {  // the innermost one counts
    if (outer == &scope) break;
    RecordPtr found = known_record(*outer);
    if (!found) found = outer->records().find(key(site_.id()));
    if (!found && backward) found = outer->records().find(key(site_.forward_id()));
    if (!found) continue;
    from = std::move(found);
    owner = outer;
  }
  if (from) copy_keys(*owner, from, context);
}

void AnalysisSession::copy_keys(ScopeState& owner, const RecordPtr& from, OpContext& context) const {
  AnalysisLock held(owner.records(), *from);  // an analysis on another thread may be writing keys
  context.keys() = from->context.keys();
  if (const auto& face = from->context.face()) context.face() = face->copy_keys(context);
}

/// Shows the operator in the context while the analysis runs.
struct AnalysisSession::Bound : NoCopy {
  Bound(OpContext& context, ContextSession& session) : context_(context) {
    context_.session_ = &session;
    OpSite& site = session.site;
    context_.backend_ = &site.backend();
    context_.type_ = site.forward_type();
    context_.info_ = &site.backend().info(site.forward_type());
    context_.id_ = site.forward_id();
    if (site.phase() != Phase::kForward) {
      context_.backward_type_ = site.type();
      context_.backward_info_ = &site.backend().info(site.type());
      context_.backward_id_ = site.id();
    }
    context_.analyst_ = std::this_thread::get_id();
  }
  ~Bound() {
    context_.analyst_ = std::thread::id{};
    context_.session_ = nullptr;
  }

 private:
  OpContext& context_;
};

void AnalysisSession::analyse(const ActiveTool& active, Record& record, size_t registration, Point point,
                              const OpCall* running) {
  if (is_done(active, record, registration)) return;
  AnalysisLock held(active.scope->records(), record);
  if (is_done(active, record, registration)) return;  // by the other thread
  ContextSession session{site_, active, point, registration, active.scope->status(active.tool), {}, {}};
  if (call_analysis(record, session, running)) store(record, session);
}

bool AnalysisSession::call_analysis(Record& record, ContextSession& session, const OpCall* running) const {
  const ActiveTool& active = session.active;
  Analysis& routine = *(*active.registrations)[session.registration].analysis;
  active.scope->misses.fetch_add(1, std::memory_order_relaxed);
  const Versions versions = versions_at(running, session.point);
  try {
    Bound bound(record.context, session);
    RoutineGuard unobserved(site_.backend(), RoutineMode::kIsolated);
    routine(record.context);
    if (!session.may_mutate) check_unchanged(*active.tool, site_, versions, versions_at(running, session.point));
    return true;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    if (!active.scope->survives(error) || !routine.is_failure(error) || site_.backend().is_programs(error)) throw;
    const std::string where = fmt::format("{}: the analysis of {}", active.tool->name(), op_place(site_));
    active.scope->stop(site_.backend(), *active.tool, where, error);
    return false;
  }
}

void AnalysisSession::store(Record& record, ContextSession& session) const {
  const ActiveTool& active = session.active;
  ScopeState& scope = *active.scope;
  for (const ScheduledPtr& action : session.scheduled) {
    if (action->with_run) action->counter = scope.run_counters().get(key(site_.forward_id()));
  }
  std::vector<ScheduledPtr> replaced;  // destroyed outside the lock
  {
    std::lock_guard lock(scope.records().mutex());
    Record::PerRegistration& result = record.of(active.tool, session.registration);
    replaced.swap(result.actions);
    result.actions = std::move(session.scheduled);
    result.done = scopes_.cache_enabled();
    result.saw_symbols = shows_symbols();
  }
  active.tool->note_analysed(site_.phase(), site_.id(), shows_symbols());
  analyses_done.fetch_add(1, std::memory_order_release);
  if (!replaced.empty()) plans_changed();
}

struct AnalysisSession::Merged {
  std::vector<ScheduledPtr> actions;
  Plan::Outlook outlook;
  bool wants_backward = false;  // an analysis of backward operators remains, or an action on them is scheduled
};

PlanPtr AnalysisSession::merge() {
  Merged merged;
  for (const ActiveTool& active : tables_->tools) {
    if (is_active(active)) merge_tool(active, merged);
  }
  if (merged.wants_backward) merged.outlook.backward = scopes_.subscription(seen_);
  return std::make_shared<const Plan>(std::move(merged.actions), std::move(merged.outlook), site_);
}

void AnalysisSession::merge_tool(const ActiveTool& active, Merged& merged) const {
  const bool backward = site_.phase() == Phase::kBackward;
  RecordPtr own, forward;
  for (size_t i = 0; i < active.registrations->size(); ++i) {
    const Registration& registration = (*active.registrations)[i];
    if (!asks(active, registration)) continue;
    const bool on_demand = registration.options.ops.is_on_demand();
    if (applies(active, registration)) {
      merged.outlook.follows |= backward && !on_demand;
      if (!own) own = existing_record(*active.scope);
      merge_own(active, i, own.get(), merged);
    } else if (backward) {
      if (!forward) forward = active.scope->records().find(key(site_.forward_id()));
      if (forward) merge_from_forward(active, i, *forward, merged);
    } else {
      merged.wants_backward |= !on_demand;
    }
  }
}

void AnalysisSession::merge_own(const ActiveTool& active, size_t registration, Record* record, Merged& merged) const {
  const bool needs_outputs = (*active.registrations)[registration].options.require_outputs;
  if (!record) {
    merged.outlook.after_pending |= needs_outputs;
    return;
  }
  std::lock_guard lock(active.scope->records().mutex());
  const Record::PerRegistration& result = record->of(active.tool, registration);
  const bool done = result.holds(shows_symbols()) && scopes_.cache_enabled();
  merged.outlook.after_pending |= needs_outputs && !done;
  for (const ScheduledPtr& action : result.actions) {
    if (action->removed) continue;
    if (action->phase == site_.phase()) {
      merged.actions.push_back(action);
    } else {
      merged.wants_backward = true;
    }
  }
}

void AnalysisSession::merge_from_forward(const ActiveTool& active, size_t registration, Record& forward,
                                         Merged& merged) const {
  std::lock_guard lock(active.scope->records().mutex());
  for (const ScheduledPtr& action : forward.of(active.tool, registration).actions) {
    if (!action->removed && takes_from_forward(*action)) merged.actions.push_back(action);
  }
}

}  // namespace amanda
