#include "coverage/first_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "amanda/base/per_thread.h"
#include "base/op_types.h"
#include "coverage/callbacks.h"
#include "coverage/elsewhere.h"
#include "thread/keys.h"
#include "thread/tracing.h"

namespace amanda::pytorch {
namespace {

// NOTE: [the first call]
// A filter that matched nothing is worth a warning if something ran that it could have matched. Operators that no tool
// asks for do not pass a kernel of ours, and must not. So RecordFunction, which asks for callbacks at each call anyway,
// has one of ours until the first call, which takes it away.

// Asked for at each switch of scopes, also when the thread ends and its `FirstCall` is gone.
thread_local constinit bool switched_on = false;
thread_local constinit size_t num_entries = 0;

struct FirstCall {
  struct Awaiting {
    uint64_t entry;
    bool called;
  };
  ~FirstCall() {
    num_entries = 0;
    for (const Awaiting& awaiting : entries) end_await_elsewhere(awaiting.entry);
  }

  void changed() const;

  std::vector<Awaiting> entries;
};

std::unique_ptr<at::ObserverContext> note_call(const at::RecordFunction& function);

// The callback is found by the function that it calls. A guard that restores state, or another thread that inherits it,
// may bring the callback back without our knowledge.
std::optional<at::CallbackHandle> callback_here() {
  const at::RecordFunctionCallbacks& callbacks = callbacks_here();
  const auto ours = std::find_if(callbacks.begin(), callbacks.end(),
                                 [](const auto& entry) { return entry.callback_.start() == &note_call; });
  return ours == callbacks.end() ? std::nullopt : std::optional(ours->handle_);
}

void FirstCall::changed() const {
  num_entries = entries.size();
  const bool needed = switched_on && std::any_of(entries.begin(), entries.end(),
                                                 [](const Awaiting& awaiting) { return !awaiting.called; });
  const std::optional<at::CallbackHandle> callback = callback_here();
  if (needed && !callback) {
    add_callback_here(at::RecordFunctionCallback(&note_call).scopes({at::RecordScope::FUNCTION}));
  } else if (!needed && callback) {
    remove_callback_here(*callback);
  }
}

std::unique_ptr<at::ObserverContext> note_call(const at::RecordFunction& function) {
  const std::optional<c10::OperatorName> name = function.operator_name();
  if (!name) return nullptr;  // an autograd node, or bookkeeping
  const auto op = c10::Dispatcher::singleton().findOp(*name);
  if (!op || !op->hasSchema() || op_types().of(*op).noise) return nullptr;
  auto& here = per_thread<FirstCall>();
  if (!belongs_to_backward() && thread_keys().unobserved == 0) {
    for (FirstCall::Awaiting& awaiting : here.entries) awaiting.called = true;
  }
  if (const auto callback = callback_here()) remove_callback_here(*callback);
  return nullptr;
}

}  // namespace

void await_call(uint64_t entry, bool elsewhere) {
  if (elsewhere) await_elsewhere(entry);
  auto& here = per_thread<FirstCall>();
  here.entries.push_back({entry, false});
  here.changed();
}

AwaitedCall end_await_call(uint64_t entry) {
  if (num_entries == 0) return {};
  auto& here = per_thread<FirstCall>();
  const auto found = std::find_if(here.entries.begin(), here.entries.end(),
                                  [&](const FirstCall::Awaiting& awaiting) { return awaiting.entry == entry; });
  if (found == here.entries.end()) return {};
  AwaitedCall awaited{.here = found->called, .elsewhere = end_await_elsewhere(entry)};
  here.entries.erase(found);
  here.changed();
  return awaited;
}

void await_calls_here(bool on) {
  switched_on = on;
  if (num_entries != 0) per_thread<FirstCall>().changed();
}

}  // namespace amanda::pytorch
