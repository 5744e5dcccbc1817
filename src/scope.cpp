#include "amanda/scope.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "amanda/error.h"
#include "amanda/log.h"
#include "backends.h"
#include "generation.h"
#include "scope_stack.h"
#include "scope_state.h"
#include "thread_scopes.h"

namespace amanda {
namespace {

struct Entry {
  uint64_t id;
  std::shared_ptr<ScopeState> state;
};

/// One kind of switch: those that are turned. They may be put back in any order, as two asyncio tasks do.
class Turns {
 public:
  bool on() const { return turns_.empty() || turns_.back().on; }
  uint64_t turn(bool on) {
    turns_.push_back({++last_, on});
    return last_;
  }
  void put_back(uint64_t id) {
    std::erase_if(turns_, [id](const Turn& turn) { return turn.id == id; });
  }

 private:
  struct Turn {
    uint64_t id;
    bool on;
  };
  std::vector<Turn> turns_;
  uint64_t last_ = 0;
};

struct ThreadScopes {
  std::vector<Entry> entries;  // outermost first
  std::shared_ptr<ScopeStack> stack;
  Turns instrumentation, cache;
  uint64_t told = 0;                                   // the tools' generation when the drivers were told last
  std::vector<std::shared_ptr<const void>> of_parent;  // a forked child's: to be let go of once Python runs there

  ~ThreadScopes() {
    if (!stack) return;
    stack.reset();  // or a driver would go on with it while the thread ends
    tell_quietly();
  }

  Turns& turns(Switch::Which which) { return which == Switch::Which::kInstrumentation ? instrumentation : cache; }
  bool is_active(const Tool* tool) const { return stack && stack->contains(tool); }

  /// Tells the drivers: all of them, whatever one throws. Then throws the first error.
  void tell() {
    told = tool_generation.load();
    std::exception_ptr first;
    for (Backend* backend : attached_backends()) {
      try {
        backend->switch_to(instrumentation.on() ? stack.get() : nullptr);
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
    if (first) std::rethrow_exception(first);
  }

  void tell_quietly() noexcept {
    try {
      tell();
    } catch (...) {
      log_warning(fmt::format("[amanda] telling a driver of scopes failed: {}", describe(std::current_exception())));
    }
  }

  std::shared_ptr<ScopeStack> make_stack() const {
    std::vector<ScopeState*> scopes;
    ScopeStackUse::Owners owners;
    for (const Entry& entry : entries) {
      if (std::find(scopes.begin(), scopes.end(), entry.state.get()) != scopes.end()) continue;
      scopes.push_back(entry.state.get());
      owners.push_back(entry.state);
    }
    if (scopes.empty()) return nullptr;
    // Inside an operator the tools' bits are in use, and a kept stack may have given out others.
    auto made = ThreadCalls::current().inside ? std::make_shared<ScopeStack>(scopes, cache.on(), stack.get())
                                              : scopes.back()->kept_stack(scopes, cache.on());
    return ScopeStackUse::begin(std::move(made), std::move(owners));
  }

  /// Makes the stack fit the entries and switches, and tells the drivers. If that fails, `undo` takes back what
  /// changed, and all is as it was.
  template <class Undo>
  void changed(const Undo& undo) {
    std::shared_ptr<ScopeStack> other;
    try {
      other = make_stack();
      stack.swap(other);
      try {
        tell();
      } catch (...) {
        stack.swap(other);
        throw;
      }
    } catch (...) {
      undo();
      tell_quietly();
      throw;
    }
    CallFrame::keep(std::move(other));  // last: letting go may run a tool's code
  }

  /// The same where something ended: it stays ended, whatever fails.
  void ended() {
    std::shared_ptr<ScopeStack> other;
    std::exception_ptr error;
    try {
      other = make_stack();
    } catch (...) {
      error = std::current_exception();
    }
    stack.swap(other);
    try {
      tell();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    CallFrame::keep(std::move(other));
    if (error) std::rethrow_exception(error);
  }
};

thread_local ThreadScopes this_thread;
std::atomic<uint64_t> next_entry{1};
std::atomic<uint64_t> forks{0};
WaitHooks wait_hooks;

// A forked child has the scopes of no thread: nobody there will leave them.
void forget_in_child() {
  ++forks;
  ThreadScopes& thread = this_thread;
  for (Entry& entry : thread.entries) thread.of_parent.push_back(std::move(entry.state));
  thread.entries.clear();
  if (thread.stack) thread.of_parent.push_back(std::move(thread.stack));
  thread.stack.reset();
  thread.tell_quietly();
}

const bool fork_handler = pthread_atfork(nullptr, nullptr, &forget_in_child) == 0;

}  // namespace

std::shared_ptr<ScopeStack> ScopeState::kept_stack(const std::vector<ScopeState*>& scopes, bool cache_enabled) {
  constexpr size_t kKept = 8;          // ways in which one scope object is nested in others
  std::shared_ptr<ScopeStack> oldest;  // destroyed outside the lock: its plans may hold a binding's objects
  std::lock_guard lock(mutex_);
  for (const auto& stack : stacks_) {
    if (stack->is_made_of(scopes, cache_enabled)) return stack;
  }
  if (stacks_.size() == kKept) {
    oldest = std::move(stacks_.front());
    stacks_.erase(stacks_.begin());
  }
  return stacks_.emplace_back(std::make_shared<ScopeStack>(scopes, cache_enabled, nullptr));
}

Scope::Scope(std::vector<Tool*> tools, ScopeOptions options)
    : state_(std::make_shared<ScopeState>(std::move(tools), options)) {}

Scope::~Scope() = default;

uint64_t Scope::enter_entry() {
  ThreadScopes& thread = this_thread;
  for (auto& dropped : std::exchange(thread.of_parent, {})) CallFrame::keep(std::move(dropped));
  // The low half counts entries; the high half says in which process, so that a child's exit is recognised.
  const uint64_t id = (forks << 32) | (next_entry++ & 0xFFFFFFFF);
  const std::shared_ptr<ScopeState> state = state_;  // a tool may drop this scope
  std::vector<Tool*> told;
  try {
    for (Tool* tool : state->tools()) {
      if (thread.is_active(tool)) continue;
      tool->on_enter(*this);
      told.push_back(tool);
    }
    thread.entries.push_back({id, state});
    thread.changed([&] { std::erase_if(thread.entries, [id](const Entry& entry) { return entry.id == id; }); });
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
  return id;
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
  const std::shared_ptr<ScopeState> state = std::move(found->state);
  thread.entries.erase(found);
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
}

Scope::Guard Scope::enter() { return Guard(*this); }

const std::vector<Tool*>& Scope::tools() const { return state_->tools(); }
CacheInfo Scope::cache_info() const { return state_->cache_info(); }
void Scope::cache_clear(OpId op_id) {
  state_->clear(op_id);
  refresh_this_thread();  // a driver that has put a toolset somewhere looks again
}

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
  ThreadScopes& thread = this_thread;
  Turns& turns = thread.turns(which);
  const bool was_on = turns.on();
  turn_ = turns.turn(on);
  if (was_on != on) thread.changed([&] { turns.put_back(turn_); });
}

Switch::Switch(Switch&& other) noexcept
    : which_(other.which_), thread_(other.thread_), turn_(other.turn_), armed_(std::exchange(other.armed_, false)) {}

Switch::~Switch() {
  if (thread_ != std::this_thread::get_id()) return;
  try {
    put_back();
  } catch (...) {  // a destructor must not throw
    log_warning(fmt::format("[amanda] putting a switch back failed: {}", describe(std::current_exception())));
  }
}

void Switch::put_back() {
  if (!armed_) return;
  if (thread_ != std::this_thread::get_id()) {
    throw Error("[scope] this switch was turned on another thread; put it back where it was turned");
  }
  armed_ = false;
  Turns& turns = this_thread.turns(which_);
  const bool was_on = turns.on();
  turns.put_back(turn_);
  if (turns.on() != was_on) this_thread.ended();
}

Switch disabled() { return Switch(Switch::Which::kInstrumentation, false); }
Switch enabled() { return Switch(Switch::Which::kInstrumentation, true); }
Switch cache_disabled() { return Switch(Switch::Which::kCache, false); }
Switch cache_enabled() { return Switch(Switch::Which::kCache, true); }
bool is_enabled() { return this_thread.instrumentation.on(); }
bool is_cache_enabled() { return this_thread.cache.on(); }

void refresh_this_thread() {
  if (this_thread.stack) this_thread.tell();
}

void refresh_if_stale() {
  ThreadScopes& thread = this_thread;
  if (thread.stack && thread.told != tool_generation.load(std::memory_order_relaxed)) thread.tell();
}

bool is_open_elsewhere(const Tool& tool) { return ScopeStackUse::count(tool) > (this_thread.is_active(&tool) ? 1 : 0); }

std::shared_ptr<ScopeStack> scopes_of_this_thread() {
  return this_thread.instrumentation.on() ? this_thread.stack : nullptr;
}

void set_wait_hooks(WaitHooks hooks) { wait_hooks = hooks; }
const WaitHooks& current_wait_hooks() { return wait_hooks; }

}  // namespace amanda
