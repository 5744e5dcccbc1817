#include "scope_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "amanda/log.h"
#include "context_session.h"
#include "description.h"
#include "generation.h"
#include "resolver.h"
#include "routine_guard.h"

namespace amanda {

std::atomic<uint64_t> tool_generation{1};
std::atomic<uint64_t> plan_generation{1};
std::atomic<uint64_t> analyses_done{0};

void tools_changed() {
  tool_generation.fetch_add(1);
  plans_changed();
}

Record::~Record() {
  for (auto& [tool, registrations] : tools) {
    for (PerRegistration& registration : registrations) {
      for (const ScheduledPtr& action : registration.actions) {
        action->removed = true;
        action->routine->retire();
      }
    }
  }
}

Record::PerRegistration& Record::of(const Tool* tool, size_t registration) {
  auto& registrations = tools[tool];
  if (registrations.size() <= registration) registrations.resize(registration + 1);
  return registrations[registration];
}

bool Record::is_empty() const {
  for (const auto& [tool, registrations] : tools) {
    for (const PerRegistration& registration : registrations) {
      if (!registration.actions.empty()) return false;
    }
  }
  return context.keys().empty() && (!context.face() || !context.face()->has_keys());
}

namespace {
std::atomic<uint64_t> next_scope_serial{1};
}

std::vector<ScheduledPtr> Record::scheduled(const std::vector<Tool*>& order, const ContextSession* running) const {
  std::vector<ScheduledPtr> found;
  auto add = [&](const std::vector<ScheduledPtr>& actions) {
    std::copy_if(actions.begin(), actions.end(), std::back_inserter(found),
                 [](const ScheduledPtr& action) { return !action->removed; });
  };
  for (const Tool* tool : order) {
    const auto known = tools.find(tool);
    const size_t registrations = known == tools.end() ? 0 : known->second.size();
    const bool runs = running && running->active.tool == tool;
    for (size_t i = 0; i < std::max(registrations, runs ? running->registration + 1 : 0); ++i) {
      if (runs && i == running->registration) {
        add(running->scheduled);
      } else if (i < registrations) {
        add(known->second[i].actions);
      }
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const ScheduledPtr& a, const ScheduledPtr& b) {
    return std::pair(a->phase, a->point) < std::pair(b->phase, b->point);
  });
  return found;
}

std::vector<ActionDescription> OpContext::actions() const {
  const std::shared_ptr<ScopeState> scope = scope_.lock();
  if (!scope) return {};
  std::vector<ScheduledPtr> scheduled;
  {
    std::lock_guard lock(scope->mutex());
    const bool ours = analyst_.load() == std::this_thread::get_id();  // another thread's session is its own
    scheduled = record_->scheduled(scope->tools(), ours ? session_ : nullptr);
  }
  return describe(scheduled);
}

ScopeState::ScopeState(std::vector<Tool*> tools, ScopeOptions options)
    : tools_(resolve(tools)), options_(options), serial_(next_scope_serial++) {
  for (Tool* tool : tools_) {
    tool->applied_ = true;
    statuses_[tool] = std::make_shared<ToolStatus>(tool->name());
  }
}

RecordPtr ScopeState::record(RecordKey key, const std::function<RecordPtr()>& make) {
  if (RecordPtr known = find(key)) return known;
  RecordPtr made = make();  // outside the lock: it may copy a binding's keys
  if (key.id == 0) return made;
  RecordPtr evicted;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  auto [known, added] = records_.try_emplace(key, made);
  if (!added) return known->second;
  made->number = ++numbered_;
  queue_for_eviction(key);
  if (evictable_.size() > kMaxEmptyRecords) evicted = evict_unused();
  return made;
}

// CLOCK, an approximation of least recently used: a record that was looked up since the hand last passed it stays for
// another round. A cache hit looks up no record, so plans are merged again twice a round: this looks up the records in
// use, and adds no cost to hits.
void ScopeState::queue_for_eviction(RecordKey key) {
  evictable_.push_back(key);
  if (++queued_ % (kMaxEmptyRecords / 2) == 0) plans_changed();
}

RecordPtr ScopeState::evict_unused() {
  while (evictable_.size() > kMaxEmptyRecords) {
    const RecordKey key = evictable_.front();
    evictable_.pop_front();
    auto found = records_.find(key);
    if (found == records_.end()) continue;  // cleared
    Record& record = *found->second;
    if (std::exchange(record.used, false) || record.analysed_by != std::thread::id{}) {
      queue_for_eviction(key);
    } else if (record.is_empty()) {
      RecordPtr evicted = std::move(found->second);
      records_.erase(found);
      return evicted;
    }
  }
  return nullptr;
}

RecordPtr ScopeState::find(RecordKey key) {
  std::lock_guard lock(mutex_);
  auto found = records_.find(key);
  if (found == records_.end()) return nullptr;
  found->second->used = true;
  return found->second;
}

void ScopeState::each_record(const std::function<void(Record&)>& fn) {
  std::lock_guard lock(mutex_);
  for (auto& [key, record] : records_) fn(*record);
}

void ScopeState::clear(OpId id) {
  decltype(records_) dropped;  // destroyed outside the lock: it holds a binding's objects
  {
    std::lock_guard lock(mutex_);
    if (id == 0) {
      dropped.swap(records_);
      evictable_.clear();
      places_.clear();
    } else {
      for (auto it = records_.begin(); it != records_.end();) {  // its backward operators' records too
        auto next = std::next(it);
        if (it->first.id == id || it->second->context.op_id() == id) dropped.insert(records_.extract(it));
        it = next;
      }
    }
  }
  ++clears;
  plans_changed();
}

std::shared_ptr<const void> ScopeState::opened() {
  std::lock_guard lock(mutex_);
  std::shared_ptr<const void> open = open_.lock();
  if (!open) {
    open_ = open = std::make_shared<char>();
    ++entries_;
  }
  return open;
}

std::shared_ptr<RunCounter> ScopeState::run_counter(RecordKey key) {
  if (key.id == 0) return std::make_shared<RunCounter>();
  std::lock_guard lock(mutex_);
  if (counters_.size() >= next_sweep_) {  // those that no action holds: an analysis was expected, and asked for no run
    std::erase_if(counters_, [](const auto& known) { return known.second.use_count() == 1; });
    next_sweep_ = 2 * counters_.size() + kMaxEmptyRecords;
  }
  std::shared_ptr<RunCounter>& counter = counters_[key];
  if (!counter) counter = std::make_shared<RunCounter>();
  return counter;
}

bool ScopeState::stopped(const Tool* tool) const {
  auto found = statuses_.find(tool);
  return found != statuses_.end() && found->second->stopped;
}

void ScopeState::stop(Backend& backend, Tool& failed, const std::string& where, const std::exception_ptr& error) {
  std::vector<Tool*> stopping;
  for (Tool* tool : tools_) {
    if (tool != &failed && !depends(*tool, failed)) continue;
    if (statuses_.at(tool)->stopped.exchange(true)) continue;
    ++statuses_.at(tool)->changes;
    stopping.push_back(tool);
  }
  if (stopping.empty()) return;  // another thread did it first
  tools_changed();
  std::string names;
  for (const Tool* tool : stopping) names += (names.empty() ? "'" : ", '") + tool->name() + "'";
  log_warning(
      fmt::format("[amanda] {} failed: {}; stopped for the rest of the scope: {}", where, describe(error), names));
  const RoutineGuard unobserved(backend, RoutineMode::kIsolated);
  for (Tool* tool : stopping) {
    try {
      tool->on_disable(error);
    } catch (...) {  // the program continues even if the tool throws here
      log_warning(
          fmt::format("[amanda] on_disable of '{}' failed: {}", tool->name(), describe(std::current_exception())));
    }
  }
}

void ScopeState::note_place(const OpInfo& type) {
  std::lock_guard lock(mutex_);
  ++places_[&type];
}

std::vector<std::pair<std::string, size_t>> ScopeState::analysed_types() {
  std::map<std::string, size_t> by_name;  // all overloads
  {
    std::lock_guard lock(mutex_);
    for (const auto& [type, places] : places_) by_name[type->ns + "::" + type->name] += places;
  }
  std::vector<std::pair<std::string, size_t>> types(by_name.begin(), by_name.end());
  std::stable_sort(types.begin(), types.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return types;
}

void ScopeState::note_filter(const Tool* tool, size_t registration, bool in_modules, const std::string& module_path) {
  constexpr size_t kMostPaths = 256;
  std::lock_guard lock(mutex_);
  FilterUse& use = filters_[{tool, registration}];
  use.matched |= in_modules;
  if (use.matched) {
    use.elsewhere.clear();
  } else if (use.elsewhere.size() < kMostPaths) {
    use.elsewhere.insert(module_path);
  }
}

bool ScopeState::has_matched(const Tool& tool, size_t registration, const InstOptions& options) const {
  if (options.ops.patterns().empty() && options.modules.matches_all()) return true;
  const auto use = filters_.find({&tool, registration});
  return use != filters_.end() && use->second.matched;
}

bool ScopeState::has_work(const Tool& tool) {
  const Registrations registrations = tool.registrations();
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < registrations->size(); ++i) {
    const InstOptions& options = (*registrations)[i].options;
    if (options.ops.is_on_demand() || (options.optional && options.ops.matches_all()))
      continue;  // finds nothing itself
    if (has_matched(tool, i, options)) return true;
  }
  return false;
}

bool ScopeState::may_be_idle(const Tool& tool) {
  return std::any_of(tools_.begin(), tools_.end(), [&](const Tool* other) {
    return depends(*other, tool) || ((other == &tool || depends(tool, *other)) && has_work(*other));
  });
}

std::vector<Unmatched> ScopeState::unmatched(Tool& tool) {
  std::vector<Unmatched> found;
  {
    const Registrations registrations = tool.registrations();
    std::lock_guard lock(mutex_);
    std::lock_guard tool_lock(tool.mutex_);
    for (size_t i = 0; i < registrations->size(); ++i) {
      const InstOptions& options = (*registrations)[i].options;
      if (has_matched(tool, i, options) || tool.told_unmatched_.contains(i)) continue;
      Unmatched& one = found.emplace_back(Unmatched{&tool, i, options});
      const auto use = filters_.find({&tool, i});
      if (use == filters_.end()) continue;
      one.ops_matched = true;
      one.elsewhere.assign(use->second.elsewhere.begin(), use->second.elsewhere.end());
    }
  }
  const auto is_optional = [](const Unmatched& one) { return one.options.optional; };
  if (std::any_of(found.begin(), found.end(), is_optional) && may_be_idle(tool)) std::erase_if(found, is_optional);
  return found;
}

bool ScopeState::has_unmatched() {
  return std::any_of(tools_.begin(), tools_.end(), [&](Tool* tool) { return !unmatched(*tool).empty(); });
}

std::vector<Unmatched> ScopeState::take_unmatched(Tool& tool) {
  if (stopped(&tool)) return {};
  std::vector<Unmatched> found = unmatched(tool);
  std::lock_guard lock(tool.mutex_);
  std::erase_if(found, [&](const Unmatched& one) { return !tool.told_unmatched_.insert(one.registration).second; });
  return found;
}

// A forked child has one thread: no other thread analyzes or waits there.
void ScopeState::after_fork(void* state) {
  auto& self = *static_cast<ScopeState*>(state);
  new (&self.analysed_) std::condition_variable;
  for (auto& [key, record] : self.records_) {
    if (record->analysed_by != std::this_thread::get_id()) record->analysed_by = {};
  }
}

CacheInfo ScopeState::cache_info() {
  std::lock_guard lock(mutex_);
  return {hits.count(), misses, records_.size()};
}

std::string describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace amanda
