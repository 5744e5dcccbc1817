#include "coverage/elsewhere.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "amanda/base/leaked.h"
#include "amanda/base/mutex.h"
#include "base/op_types.h"
#include "coverage/callbacks.h"
#include "coverage/coverage_counter.h"
#include "thread/keys.h"
#include "thread/tracing.h"

namespace amanda::pytorch {
namespace {

std::unique_ptr<at::ObserverContext> note_anywhere(const at::RecordFunction& function);

const void* this_thread() { return &thread_keys(); }

/// The entries that wait, and the callback that all threads have until the first operator, whoever calls it.
struct Waiting {
  struct Entry {
    uint64_t number;
    const void* thread;
    bool waits = true;
    std::string op = {};
  };

  // Call these with the lock held.
  void change_callback() {
    const bool needed = std::any_of(entries.begin(), entries.end(), [](const Entry& entry) { return entry.waits; });
    if (needed == callback.has_value()) return;
    if (needed) {
      callback =
          add_callback_everywhere(at::RecordFunctionCallback(&note_anywhere).scopes({at::RecordScope::FUNCTION}));
    } else {
      remove_callback_everywhere(*std::exchange(callback, std::nullopt));
    }
  }
  void settle(const std::string& op, const void* thread) {
    for (Entry& entry : entries) {
      if (entry.waits && entry.thread != thread) entry.op = op;
      entry.waits = false;
    }
    change_callback();
  }

  Mutex mutex;
  std::vector<Entry> entries;
  std::optional<at::CallbackHandle> callback;
};

std::unique_ptr<at::ObserverContext> note_anywhere(const at::RecordFunction& function) {
  const std::optional<c10::OperatorName> name = function.operator_name();
  if (!name) return nullptr;  // an autograd node, or bookkeeping
  const auto op = c10::Dispatcher::singleton().findOp(*name);
  if (!op || !op->hasSchema() || op_types().of(*op).noise) return nullptr;
  const bool outside = !thread_keys().scopes && thread_keys().unobserved == 0 && !belongs_to_backward();
  Waiting& waiting = leaked<Waiting>();
  std::lock_guard lock(waiting.mutex);
  waiting.settle(outside && is_threads_own_work() ? name->name : "", this_thread());
  return nullptr;
}

}  // namespace

void await_elsewhere(uint64_t entry) {
  Waiting& waiting = leaked<Waiting>();
  std::lock_guard lock(waiting.mutex);
  waiting.entries.push_back({entry, this_thread()});
  waiting.change_callback();
}

std::string end_await_elsewhere(uint64_t entry) {
  Waiting& waiting = leaked<Waiting>();
  std::lock_guard lock(waiting.mutex);
  const auto found = std::find_if(waiting.entries.begin(), waiting.entries.end(),
                                  [&](const Waiting::Entry& one) { return one.number == entry; });
  if (found == waiting.entries.end()) return {};
  std::string op = std::move(found->op);
  waiting.entries.erase(found);
  waiting.change_callback();
  return op;
}

}  // namespace amanda::pytorch
