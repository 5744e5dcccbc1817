#include "scope_state.h"

#include <fmt/format.h>

#include <mutex>
#include <thread>
#include <utility>

#include "amanda/log.h"
#include "description.h"
#include "generation.h"
#include "resolver.h"
#include "routine_guard.h"

namespace amanda {
namespace {
std::atomic<uint64_t> next_scope_serial{1};
}

ScopeState::ScopeState(std::vector<Tool*> tools, ScopeOptions options)
    : tools_(std::move(tools)), options_(std::move(options)), serial_(next_scope_serial++) {
  tools_ = resolve(tools_);
  for (Tool* tool : tools_) {
    tool->applied_ = true;
    statuses_[tool] = std::make_shared<ToolStatus>(tool->name());
  }
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

void ScopeState::clear(OpId id) {
  const auto dropped = records_.take(id);  // destroyed last: a binding's objects may run operators
  ++clears;
  plans_changed();
}

CacheInfo ScopeState::cache_info() { return {hits.count(), misses, records_.size()}; }

// Here, because a record holds an OpContext: that part of the core knows no scope.
std::vector<ActionDescription> OpContext::actions() const {
  const std::shared_ptr<ScopeState> scope = scope_.lock();
  if (!scope) return {};
  std::vector<ScheduledPtr> scheduled;
  {
    std::lock_guard lock(scope->records().mutex());
    const bool ours = analyst_.load() == std::this_thread::get_id();  // another thread's session is its own
    scheduled = record_->scheduled(scope->tools(), ours ? session_ : nullptr);
  }
  return describe(scheduled);
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
