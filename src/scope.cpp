#include "amanda/scope.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "amanda/error.h"
#include "amanda/log.h"
#include "backends.h"
#include "description.h"
#include "scope_state.h"
#include "thread_scopes.h"
#include "unmatched_text.h"

namespace amanda {
namespace {
std::atomic<uint64_t> next_entry{1};

void await_call(uint64_t entry, bool elsewhere) {
  for (Backend* backend : attached_backends()) backend->await_call(entry, elsewhere);
}

AwaitedCall end_await_call(uint64_t entry) {
  AwaitedCall awaited;
  for (Backend* backend : attached_backends()) {
    const AwaitedCall here = backend->end_await_call(entry);
    awaited.here |= here.here;
    if (awaited.elsewhere.empty()) awaited.elsewhere = here.elsewhere;
  }
  return awaited;
}

}  // namespace

Scope::Scope(std::vector<Tool*> tools, ScopeOptions options)
    : state_(std::make_shared<ScopeState>(std::move(tools), std::move(options))) {}

Scope::~Scope() = default;

uint64_t Scope::enter_entry() {
  ThreadScopes& thread = ThreadScopes::current();
  for (auto& dropped : std::exchange(thread.of_parent, {})) CallFrame::keep(std::move(dropped));
  // The low half counts entries; the high half identifies the process, so that an exit in a forked child is recognized.
  const uint64_t id = (forks << 32) | (next_entry++ & 0xFFFFFFFF);
  const std::shared_ptr<ScopeState> state = state_;  // a tool may destroy this scope
  std::vector<Tool*> entered;
  try {
    for (Tool* tool : state->tools()) {
      if (thread.is_active(tool)) continue;
      tool->on_enter(*this);
      entered.push_back(tool);
    }
    const bool idle = !tools().empty() && !state->is_settled();
    if (idle || state->filter_use().has_unmatched()) await_call(id, idle);
    thread.entries.push_back({id, state, state->opened()});
    thread.changed([&] { std::erase_if(thread.entries, [id](const ScopeEntry& entry) { return entry.id == id; }); });
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    end_await_call(id);
    for (auto it = entered.rbegin(); it != entered.rend(); ++it) {
      try {
        (*it)->on_exit(*this, error);
      } catch (...) {  // the first error is reported
        log_warning(
            fmt::format("[amanda] {}: on_exit failed: {}", (*it)->name(), amanda::describe(std::current_exception())));
      }
    }
    throw;
  }
  return id;
}

ScopeRemarks Scope::leave_entry(uint64_t id, const std::exception_ptr& error) {
  if ((id >> 32) != forks) return {};  // entered by the parent process
  ThreadScopes& thread = ThreadScopes::current();
  auto found = std::find_if(thread.entries.begin(), thread.entries.end(),
                            [&](const ScopeEntry& entry) { return entry.id == id; });
  if (found == thread.entries.end()) {
    throw Error(
        "[scope] this scope was not entered on this thread, or was left already; leave it where it was entered");
  }
  const std::shared_ptr<ScopeState> state = std::move(found->state);
  thread.entries.erase(found);
  AwaitedCall awaited = end_await_call(id);
  awaited.here |= state->misses != 0;
  CallFrame::keep(state);
  std::exception_ptr first;
  auto keep_first = [&](const auto& step) {
    try {
      step();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  };
  keep_first([&] { thread.ended(); });
  const std::vector<Tool*>& tools = state->tools();
  for (auto it = tools.rbegin(); it != tools.rend(); ++it) {
    if (thread.is_active(*it)) continue;  // in another entry
    keep_first([&] { (*it)->on_exit(*this, error); });
  }
  if (first) std::rethrow_exception(first);
  ScopeRemarks remarks;
  if (error) return remarks;
  if (!awaited.here) {
    if (!awaited.elsewhere.empty() && !state->settle()) remarks.elsewhere = std::move(awaited.elsewhere);
    return remarks;
  }
  state->settle();
  for (Tool* tool : tools) {
    if (thread.is_active(tool) || state->stopped(tool)) continue;
    for (Unmatched& one : state->filter_use().take_unmatched(*tool)) remarks.unmatched.push_back(std::move(one));
  }
  return remarks;
}

Scope::Guard Scope::enter() { return Guard(*this); }

const std::vector<Tool*>& Scope::tools() const { return state_->tools(); }
CacheInfo Scope::cache_info() const { return state_->cache_info(); }
std::vector<std::pair<std::string, size_t>> Scope::analysed_types() const { return state_->records().analysed_types(); }
void Scope::cache_clear(OpId op_id) {
  state_->clear(op_id);
  refresh_this_thread();  // a driver that stored a toolset checks it again
}

void Scope::visit(const std::function<void(Routine&)>& routine, const std::function<void(OpContext&)>& context) const {
  state_->records().each([&](Record& record) {
    context(record.context);
    for (const auto& [tool, registrations] : record.tools) {
      for (const Record::PerRegistration& registration : registrations) {
        for (const ScheduledPtr& action : registration.actions) routine(*action->routine);
      }
    }
  });
}

std::vector<ActionDescription> Scope::describe() const {
  std::vector<std::pair<uint64_t, std::vector<ScheduledPtr>>> found;
  state_->records().each([&](Record& record) {
    std::vector<ScheduledPtr> actions = record.scheduled(state_->tools());
    if (!actions.empty()) found.emplace_back(record.number, std::move(actions));
  });
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<ActionDescription> described;
  for (auto& [number, actions] : found) {  // outside the lock: a routine's name is its author's code
    std::erase_if(actions, [&](const ScheduledPtr& action) { return state_->stopped(action->tool); });
    for (ActionDescription& one : amanda::describe(actions)) described.push_back(std::move(one));
  }
  return described;
}

std::vector<Tool*> Scope::stopped_tools() const {
  std::vector<Tool*> stopped;
  for (Tool* tool : state_->tools()) {
    if (state_->stopped(tool)) stopped.push_back(tool);
  }
  return stopped;
}

Scope::Guard::Guard(Scope& scope)
    : scope_(scope), entry_(scope.enter_entry()), exceptions_(std::uncaught_exceptions()) {}

Scope::Guard::~Guard() {
  std::exception_ptr error;
  if (std::uncaught_exceptions() > exceptions_) {
    error =
        std::make_exception_ptr(Error("[scope] left by an exception"));  // which exception is unknown during unwinding
  }
  try {
    const ScopeRemarks remarks = scope_.leave_entry(entry_, error);
    if (!remarks.elsewhere.empty()) {
      log_warning(
          fmt::format("[scope] no operator ran on the thread that entered the scope, and {} ran on another thread; a "
                      "scope covers the thread that enters it: enter it there",
                      remarks.elsewhere));
    }
    if (remarks.unmatched.empty()) return;
    for (const std::string& line : lines_of(remarks.unmatched, scope_.analysed_types())) log_warning(line);
  } catch (...) {  // a destructor must not throw
    log_warning(fmt::format("[amanda] leaving a scope failed: {}", amanda::describe(std::current_exception())));
  }
}

}  // namespace amanda
