#include "amanda/scope.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "amanda/error.h"
#include "amanda/log.h"
#include "backends.h"
#include "generation.h"
#include "scope_state.h"
#include "thread_scopes.h"

namespace amanda {
namespace {

struct Entry {
  uint64_t id;
  std::shared_ptr<ScopeState> state;
};

struct ThreadScopes {
  std::vector<Entry> entries;  // outermost first
  std::shared_ptr<ScopeStack> stack;
  bool enabled = true, cache_enabled = true;

  bool is_active(const Tool* tool) const { return stack && stack->contains(tool); }

  void switch_backends() const {
    for (Backend* backend : attached_backends()) backend->switch_to(enabled ? stack.get() : nullptr);
  }

  /// Makes the stack fit the entries, and tells the drivers.
  void changed() {
    std::vector<ScopeState*> scopes;
    for (const Entry& entry : entries) {
      if (std::find(scopes.begin(), scopes.end(), entry.state.get()) == scopes.end())
        scopes.push_back(entry.state.get());
    }
    std::shared_ptr<ScopeStack> next;
    if (!scopes.empty()) {
      // Inside an operator the tools' bits are in use, and a kept stack may have given out others.
      next = ThreadCalls::current().inside ? std::make_shared<ScopeStack>(scopes, cache_enabled, stack.get())
                                           : scopes.back()->kept_stack(scopes, cache_enabled);
    }
    stack.swap(next);
    CallFrame::keep(std::move(next));
    switch_backends();
  }
};

thread_local ThreadScopes this_thread;
std::atomic<uint64_t> next_entry{1};
std::atomic<uint64_t> forks{0};
WaitHooks wait_hooks;

// A forked child has the scopes of no thread: nobody there will leave them.
void forget_in_child() {
  ++forks;
  this_thread.entries.clear();
  this_thread.stack.reset();
  this_thread.switch_backends();
}

const bool fork_handler = pthread_atfork(nullptr, nullptr, &forget_in_child) == 0;

}  // namespace

std::shared_ptr<ScopeStack> ScopeState::kept_stack(const std::vector<ScopeState*>& scopes, bool cache_enabled) {
  constexpr size_t kKept = 8;  // ways in which one scope object is nested in others
  std::lock_guard lock(mutex_);
  for (const auto& stack : stacks_) {
    if (stack->is_made_of(scopes, cache_enabled)) return stack;
  }
  if (stacks_.size() == kKept) stacks_.erase(stacks_.begin());
  return stacks_.emplace_back(std::make_shared<ScopeStack>(scopes, cache_enabled, nullptr));
}

Scope::Scope(std::vector<Tool*> tools, ScopeOptions options)
    : state_(std::make_shared<ScopeState>(std::move(tools), options)) {}

Scope::~Scope() = default;

uint64_t Scope::enter_entry() {
  ThreadScopes& thread = this_thread;
  // The low half counts entries; the high half says in which process, so that a child's exit is recognised.
  Entry entry{(forks << 32) | (next_entry++ & 0xFFFFFFFF), state_};
  std::vector<Tool*> told;
  try {
    for (Tool* tool : state_->tools()) {
      if (thread.is_active(tool)) continue;
      tool->on_enter(*this);
      told.push_back(tool);
    }
    thread.entries.push_back(entry);
    try {
      thread.changed();
    } catch (...) {
      thread.entries.pop_back();
      throw;
    }
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    for (auto it = told.rbegin(); it != told.rend(); ++it) {
      try {
        (*it)->on_exit(*this, error);
      } catch (...) {  // the first error is the one to report
        log_warning(fmt::format("[amanda] {}: on_exit failed: {}", (*it)->name(), describe(std::current_exception())));
      }
    }
    throw;
  }
  return entry.id;
}

void Scope::leave_entry(uint64_t id, const std::exception_ptr& error) {
  if ((id >> 32) != forks) return;  // entered by the parent process
  ThreadScopes& thread = this_thread;
  auto found =
      std::find_if(thread.entries.begin(), thread.entries.end(), [&](const Entry& entry) { return entry.id == id; });
  if (found == thread.entries.end()) {
    throw Error(
        "[scope] this scope was not entered on this thread, or was left already; leave it where it was entered");
  }
  const Entry entry = std::move(*found);
  thread.entries.erase(found);
  CallFrame::keep(entry.state);
  thread.changed();
  std::exception_ptr first;
  const std::vector<Tool*>& tools = entry.state->tools();
  for (auto it = tools.rbegin(); it != tools.rend(); ++it) {
    if (thread.is_active(*it)) continue;  // in another entry
    try {
      (*it)->on_exit(*this, error);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

Scope::Guard Scope::enter() { return Guard(*this); }

const std::vector<Tool*>& Scope::tools() const { return state_->tools(); }
CacheInfo Scope::cache_info() const { return state_->cache_info(); }
void Scope::cache_clear(OpId op_id) { state_->clear(op_id); }

void Scope::visit(const std::function<void(Routine&)>& routine, const std::function<void(OpContext&)>& context) const {
  state_->each_record([&](Record& record) {
    context(record.context);
    for (const auto& [tool, registrations] : record.tools) {
      for (const Record::PerRegistration& registration : registrations) {
        for (const ScheduledPtr& action : registration.actions) routine(*action->routine);
      }
    }
  });
}

Scope::Guard::Guard(Scope& scope)
    : scope_(scope), entry_(scope.enter_entry()), exceptions_(std::uncaught_exceptions()) {}

Scope::Guard::~Guard() {
  std::exception_ptr error;
  if (std::uncaught_exceptions() > exceptions_) {
    error =
        std::make_exception_ptr(Error("[scope] left by an exception"));  // which one can't be known while it unwinds
  }
  try {
    scope_.leave_entry(entry_, error);
  } catch (...) {  // a destructor must not throw
    log_warning(fmt::format("[amanda] leaving a scope failed: {}", describe(std::current_exception())));
  }
}

Switch::Switch(Which which, bool on) : which_(which) {
  bool& flag = which == Which::kInstrumentation ? this_thread.enabled : this_thread.cache_enabled;
  previous_ = std::exchange(flag, on);
  if (previous_ != on) this_thread.changed();
}

Switch::Switch(Switch&& other) noexcept
    : which_(other.which_),
      thread_(other.thread_),
      previous_(other.previous_),
      armed_(std::exchange(other.armed_, false)) {}

Switch::~Switch() {
  if (thread_ == std::this_thread::get_id()) put_back();
}

void Switch::put_back() {
  if (!armed_) return;
  if (thread_ != std::this_thread::get_id()) {
    throw Error("[scope] this switch was turned on another thread; put it back where it was turned");
  }
  armed_ = false;
  bool& flag = which_ == Which::kInstrumentation ? this_thread.enabled : this_thread.cache_enabled;
  if (std::exchange(flag, previous_) != previous_) this_thread.changed();
}

Switch disabled() { return Switch(Switch::Which::kInstrumentation, false); }
Switch enabled() { return Switch(Switch::Which::kInstrumentation, true); }
Switch cache_disabled() { return Switch(Switch::Which::kCache, false); }
Switch cache_enabled() { return Switch(Switch::Which::kCache, true); }
bool is_enabled() { return this_thread.enabled; }
bool is_cache_enabled() { return this_thread.cache_enabled; }

void refresh_this_thread() {
  if (this_thread.stack) this_thread.switch_backends();
}

void set_wait_hooks(WaitHooks hooks) { wait_hooks = hooks; }
const WaitHooks& current_wait_hooks() { return wait_hooks; }

}  // namespace amanda
