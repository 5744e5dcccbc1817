#include "analysis.h"

#include <fmt/format.h>

#include "backends.h"
#include "generation.h"
#include "routine_guard.h"

namespace amanda {
namespace {

/// Waits until no other thread analyses the record, then holds it for this one.
class AnalysisLock {
 public:
  AnalysisLock(ScopeState& scope, Record& record) : scope_(scope), record_(record) {
    std::unique_lock lock(scope_.mutex());
    if (record_.analysed_by != std::thread::id{}) {
      lock.unlock();
      const WaitHooks& hooks = current_wait_hooks();
      void* token = hooks.before ? hooks.before() : nullptr;
      lock.lock();
      scope_.analysed().wait(lock, [&] { return record_.analysed_by == std::thread::id{}; });
      record_.analysed_by = std::this_thread::get_id();
      lock.unlock();
      if (hooks.after) hooks.after(token);
      return;
    }
    record_.analysed_by = std::this_thread::get_id();
  }
  ~AnalysisLock() {
    std::lock_guard lock(scope_.mutex());
    record_.analysed_by = {};
    scope_.analysed().notify_all();
  }

 private:
  ScopeState& scope_;
  Record& record_;
};

}  // namespace

AnalysisSession::AnalysisSession(const ScopeStack& scopes, OpSite& site, const Visibility& seen)
    : scopes_(scopes), tables_(&scopes.tables()), site_(site), info_(site.backend().info(site.type())), seen_(seen) {}

PlanPtr AnalysisSession::run(Point point) {
  tables_ = &scopes_.tables();
  for (const ActiveTool& active : tables_->tools) {
    if (!((seen_.outer | seen_.nested | seen_.demanded) & active.bit)) continue;
    RecordPtr record;
    for (size_t i = 0; i < active.registrations->size(); ++i) {
      const Registration& registration = (*active.registrations)[i];
      if (registration.options.require_outputs != (point == Point::kAfter) || !applies(active, registration)) continue;
      if (!record) record = record_of(active);
      analyse(active, record, i, point);
    }
  }
  return merge();
}

bool AnalysisSession::applies(const ActiveTool& active, const Registration& registration) const {
  const InstOptions& options = registration.options;
  if (options.backward || active.scope->stopped(active.tool)) return false;
  if (options.ops.is_on_demand()) return seen_.demanded & active.bit;
  if (!options.ops.matches(info_)) return false;
  return (seen_.outer & active.bit) || (options.nested && (seen_.nested & active.bit));
}

RecordPtr AnalysisSession::record_of(const ActiveTool& active) {
  RecordPtr record = known_record(*active.scope);
  if (!record) {
    record = active.scope->record(site_.id(), [&] {
      auto made = std::make_shared<Record>();
      copy_outer_keys(*active.scope, made->context);
      return made;
    });
    records_.emplace_back(active.scope, record);
  }
  return record;
}

RecordPtr AnalysisSession::known_record(ScopeState& scope) const {
  for (const auto& [owner, record] : records_) {
    if (owner == &scope) return record;
  }
  return nullptr;
}

/// From the nearest scope around `inner` that knows the operator.
void AnalysisSession::copy_outer_keys(const ScopeState& inner, OpContext& context) const {
  RecordPtr outer;
  ScopeState* owner = nullptr;
  for (ScopeState* scope : scopes_.scopes()) {
    if (scope == &inner) break;
    RecordPtr found = known_record(*scope);
    if (!found) found = scope->find(site_.id());
    if (!found) continue;
    outer = std::move(found);
    owner = scope;
  }
  if (!outer) return;
  AnalysisLock held(*owner, *outer);  // an analysis on another thread may be writing keys
  context.keys() = outer->context.keys();
  if (const auto& face = outer->context.face()) context.face() = face->copy_keys(context);
}

void AnalysisSession::analyse(const ActiveTool& active, const RecordPtr& record, size_t registration, Point point) {
  ScopeState& scope = *active.scope;
  auto is_done = [&] {
    std::lock_guard lock(scope.mutex());
    return scopes_.cache_enabled() && record->of(active.tool, registration).done;
  };
  if (is_done()) return;
  AnalysisLock held(scope, *record);
  if (is_done()) return;  // by the thread that was waited for

  OpContext::Session session{site_, active, info_, point, scope.status(active.tool), {}};
  struct Bound {
    Bound(OpContext& context, OpContext::Session& session) : context_(context) {
      context_.session_ = &session;
      context_.backend_ = &session.site.backend();
      context_.info_ = &session.info;
      context_.type_ = session.site.type();
      context_.id_ = session.site.forward_id();
    }
    ~Bound() { context_.session_ = nullptr; }
    OpContext& context_;
  };
  scope.misses.fetch_add(1, std::memory_order_relaxed);
  Analysis& routine = *(*active.registrations)[registration].analysis;
  try {
    Bound bound(record->context, session);
    RoutineGuard unobserved(site_.backend(), RoutineMode::kIsolated);
    routine(record->context);
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    if (scope.on_error() == OnError::kRaise || !routine.is_failure(error)) throw;
    scope.stop(*active.tool, fmt::format("{}: the analysis of {}::{}", active.tool->name(), info_.ns, info_.name),
               error);
    return;
  }
  std::vector<ScheduledPtr> replaced;  // destroyed outside the lock
  {
    std::lock_guard lock(scope.mutex());
    Record::PerRegistration& result = record->of(active.tool, registration);
    replaced.swap(result.actions);
    result.actions = std::move(session.scheduled);
    result.done = scopes_.cache_enabled();
  }
  if (!replaced.empty()) plans_changed();
}

PlanPtr AnalysisSession::merge() {
  std::vector<ScheduledPtr> actions;
  bool after_pending = false;
  for (const ActiveTool& active : tables_->tools) {
    if (!((seen_.outer | seen_.nested | seen_.demanded) & active.bit)) continue;
    RecordPtr record;
    for (size_t i = 0; i < active.registrations->size(); ++i) {
      const Registration& registration = (*active.registrations)[i];
      if (!applies(active, registration)) continue;
      if (!record) record = record_of(active);
      std::lock_guard lock(active.scope->mutex());
      const Record::PerRegistration& result = record->of(active.tool, i);
      if (registration.options.require_outputs && !(result.done && scopes_.cache_enabled())) after_pending = true;
      for (const ScheduledPtr& action : result.actions) {
        if (!action->removed) actions.push_back(action);
      }
    }
  }
  return std::make_shared<const Plan>(std::move(actions), after_pending);
}

}  // namespace amanda
