#include "coverage/coverage_counter.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <pthread.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "amanda/base/leaked.h"
#include "amanda/base/per_thread.h"
#include "amanda/torch.h"
#include "base/node_types.h"
#include "base/python_hooks.h"
#include "coverage/callbacks.h"
#include "coverage/python_threads.h"
#include "thread/engine_threads.h"
#include "thread/guards.h"
#include "thread/keys.h"
#include "thread/thread_guest.h"
#include "thread/tracing.h"

namespace amanda::pytorch {
namespace {

using Counters = std::vector<std::shared_ptr<CoverageCounter>>;

// One running call. RecordFunction owns it, and returns it at the end.
struct Call final : at::ObserverContext {
  struct Share {
    std::shared_ptr<CoverageCounter> counter;
    bool asked = false, shown = false;
  };

  Call* outer = nullptr;
  const OpRecord* record = nullptr;  // null for a node
  std::string node;
  std::optional<Skipped> state;  // why no tool sees it, whatever tools ask for
  std::vector<Share> shares;
};

thread_local constinit Call* innermost = nullptr;
thread_local constinit size_t own_work = 0;

// ---- which counters count here -------------------------------------------------------------------------------------

// PyTorch copies it to other threads together with our callback.
struct Published : Guest {
  Counters counters;
  std::atomic<bool> over{false};
};

const ThreadGuest<Published>& guest() {
  static const auto* guest = new ThreadGuest<Published>("amanda.coverage_counters");
  return *guest;
}

struct Thread {
  struct Open {
    std::shared_ptr<CoverageCounter> counter;
    size_t depth;
  };
  ~Thread();

  void changed() {
    if (published) published->over = true;
    published = open.empty() ? nullptr : std::make_shared<Published>();
    for (const Open& one : open) published->counters.push_back(one.counter);
    guest().set(published);
    if (published) {
      add_callback();
    } else {
      remove_callback();
    }
  }

  // Guards that restore all of a thread's state may have removed the callback, or added it again.
  bool has_callback() const {
    const at::RecordFunctionCallbacks& callbacks = callbacks_here();
    return callback && std::any_of(callbacks.begin(), callbacks.end(),
                                   [&](const auto& entry) { return entry.handle_ == *callback; });
  }
  void add_callback();
  void remove_callback() {
    if (has_callback()) remove_callback_here(*callback);
  }

  std::vector<Open> open;
  std::shared_ptr<Published> published;
  std::optional<at::CallbackHandle> callback;
};

// ---- calls on threads without a scope -------------------------------------------------------------------------------

/// The counters that are open on some thread, and the callback that all threads have meanwhile.
struct Everywhere {
  void add(const std::shared_ptr<CoverageCounter>& counter) {
    std::lock_guard lock(mutex);
    open.push_back(counter);
    change_callback();
  }
  void remove(const CoverageCounter* counter) {
    std::lock_guard lock(mutex);
    const auto found = std::find_if(open.begin(), open.end(), [&](const auto& one) { return one.get() == counter; });
    if (found != open.end()) open.erase(found);
    change_callback();
  }
  Counters counters() {
    std::lock_guard lock(mutex);
    return open;
  }
  void change_callback();

  // In a forked child the callback stays until a scope is left there: PyTorch's lock may be held.
  Mutex mutex{[](void* self) { static_cast<Everywhere*>(self)->open.clear(); }, this};  // guards what follows
  Counters open;
  std::optional<at::CallbackHandle> callback;
};

// The counters of this thread, or of the thread whose state it uses; null if there are none.
const Counters* counting_here() {
  if (const auto& own = per_thread<Thread>().published) return &own->counters;
  const Published* inherited = guest().get();
  return !inherited || inherited->over ? nullptr : &inherited->counters;
}

// ---- calls ---------------------------------------------------------------------------------------------------------

// Nodes are not called by the dispatcher. The engine's record of a node includes its hooks, and ours; the node's own
// record does not.
constexpr std::string_view kNodePrefix = "autograd::engine::evaluate_function: ";

/// Returns false for bookkeeping of the framework, which is neither an operator nor a node.
bool identify(Call& call, const at::RecordFunction& function) {
  if (const std::optional<c10::OperatorName> name = function.operator_name()) {
    const auto op = c10::Dispatcher::singleton().findOp(*name);
    if (!op || !op->hasSchema()) return false;
    call.record = &op_types().of(*op);
    return true;
  }
  std::string_view name = function.name();
  if (!name.starts_with(kNodePrefix)) return false;
  name.remove_prefix(kNodePrefix.size());
  call.node = "autograd::";
  call.node += plain_name(name);
  return true;
}

std::optional<Skipped> state_of(const Call& call, const ScopeStack* scopes) {
  if (own_work != 0) return Skipped::kOwn;
  if (RoutineState::current()) return Skipped::kRoutine;
  if (thread_keys().unobserved != 0) return Skipped::kOpaque;
  if (!scopes) return per_thread<Thread>().open.empty() ? Skipped::kThread : Skipped::kOff;
  if (!call.record) return std::nullopt;
  if (call.record->noise) return Skipped::kNoise;
  const Call* outer = call.outer && call.outer->record ? call.outer : nullptr;
  if (outer && (outer->state == Skipped::kBackward || outer->state == Skipped::kTraced)) return outer->state;
  // Inside an operator, only the operator itself may belong to a node.
  if (!outer && belongs_to_backward()) return Skipped::kBackward;
  return std::nullopt;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const Counters* counters = counting_here();
  if (!counters || thread_keys().uncounted != 0) return nullptr;
  auto call = std::make_unique<Call>();
  if (!identify(*call, function)) return nullptr;
  call->outer = innermost;
  const CurrentScopes scopes = current_scopes();
  call->state = state_of(*call, scopes.get());
  for (const std::shared_ptr<CoverageCounter>& counter : *counters) {
    const Engine::Tools& tools = counter->tools();
    const bool asked =
        !call->state && (call->record ? Engine::is_asked_for(*scopes, backend(), call->record->type, tools)
                                      : Engine::asks_for_backward(*scopes, tools));
    call->shares.push_back({counter, asked});
  }
  innermost = call.get();
  return call;
}

bool is_inside_shown(const Call& call, const CoverageCounter& counter) {
  for (const Call* outer = call.outer; outer; outer = outer->outer) {
    for (const Call::Share& share : outer->shares) {
      if (share.counter.get() == &counter && share.shown && outer->record) return true;
    }
  }
  return false;
}

Skipped why_skipped(const Call& call, const Call::Share& share) {
  if (call.state) return *call.state;
  if (!share.asked) return Skipped::kUnasked;
  if (!call.record) return Skipped::kUnowned;
  if (is_inside_shown(call, *share.counter)) return Skipped::kInner;
  const bool engine_runs = python_hooks.in_backward_pass && python_hooks.in_backward_pass();
  return engine_runs ? Skipped::kCallback : Skipped::kLost;
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  auto* call = static_cast<Call*>(context);
  if (!call) return;
  innermost = call->outer;
  for (const Call::Share& share : call->shares) {
    share.counter->count(call->record, call->node,
                         share.shown ? std::nullopt : std::optional(why_skipped(*call, share)));
  }
}

void Thread::add_callback() {
  if (has_callback()) return;
  callback = add_callback_here(at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}));
}

std::unique_ptr<at::ObserverContext> count_elsewhere(const at::RecordFunction& function) {
  if (counting_here() || current_scopes() || !is_threads_own_work()) return nullptr;
  Call call;
  if (!identify(call, function) || (call.record && call.record->noise)) return nullptr;
  for (const std::shared_ptr<CoverageCounter>& counter : leaked<Everywhere>().counters()) {
    counter->count(call.record, call.node, Skipped::kThread);
  }
  return nullptr;
}

void Everywhere::change_callback() {
  if (callback.has_value() == !open.empty()) return;
  if (callback) {
    remove_callback_everywhere(*callback);
    callback.reset();
    return;
  }
  callback = add_callback_everywhere(at::RecordFunctionCallback(&count_elsewhere).scopes({at::RecordScope::FUNCTION}));
}

Thread::~Thread() {
  open_counters -= open.size();
  for (const Open& one : open) leaked<Everywhere>().remove(one.counter.get());
}

// A forked child has no open scopes.
void forget_in_child() {
  if (!counts_calls()) return;
  Thread& thread = per_thread<Thread>();
  thread.open.clear();
  thread.changed();
  open_counters = 0;
}

const bool fork_handler = pthread_atfork(nullptr, nullptr, &forget_in_child) == 0;

}  // namespace

bool (*is_python_thread)() = nullptr;

bool is_threads_own_work() {
  return thread_keys().uncounted == 0 && own_work == 0 && !at::in_parallel_region() && is_python_thread &&
         is_python_thread();
}

void note_shown(const ScopeStack& scopes, const OpSite& site, const OpRecord* record) {
  Call* call = innermost;
  if (!call || call->record != record) return;  // RecordFunction leaves some operators out
  for (Call::Share& share : call->shares) share.shown |= Engine::shows(scopes, site, share.counter->tools());
}

void note_refused(const OpRecord& record) {
  Call* call = innermost;
  if (call && call->record == &record && !call->state) call->state = Skipped::kTraced;
}

OwnWork::OwnWork() { ++own_work; }
OwnWork::~OwnWork() { --own_work; }

// ---- counts --------------------------------------------------------------------------------------------------------

void CoverageCounter::open() {
  Thread& thread = per_thread<Thread>();
  for (Thread::Open& one : thread.open) {
    if (one.counter.get() != this) continue;
    ++one.depth;
    return;
  }
  thread.open.push_back({shared_from_this(), 1});
  ++open_counters;
  leaked<Everywhere>().add(shared_from_this());
  thread.changed();
}

void CoverageCounter::close() {
  Thread& thread = per_thread<Thread>();
  const auto found = std::find_if(thread.open.begin(), thread.open.end(),
                                  [&](const Thread::Open& one) { return one.counter.get() == this; });
  if (found == thread.open.end() || --found->depth > 0) return;  // not found: opened before a fork
  thread.open.erase(found);
  --open_counters;
  leaked<Everywhere>().remove(this);
  thread.changed();
}

void CoverageCounter::count(const OpRecord* record, const std::string& node, std::optional<Skipped> why) {
  std::lock_guard lock(mutex_);
  Counts& counts = record ? forward_[record] : backward_[node];
  ++(why ? counts.skipped[static_cast<size_t>(*why)] : counts.seen);
}

std::vector<CoverageCounter::Row> CoverageCounter::rows() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, Counts> by_name;
  for (const auto& [record, counts] : forward_) {
    Counts& sum = by_name[record->info.ns + "::" + record->info.name];
    sum.seen += counts.seen;
    for (size_t i = 0; i < kSkips; ++i) sum.skipped[i] += counts.skipped[i];
  }
  std::vector<Row> rows;
  for (const auto& [name, counts] : by_name) rows.push_back({name, false, counts});
  for (const auto& [name, counts] : std::map<std::string, Counts>(backward_.begin(), backward_.end())) {
    rows.push_back({name, true, counts});
  }
  return rows;
}

}  // namespace amanda::pytorch
