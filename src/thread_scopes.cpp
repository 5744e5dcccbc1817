#include "thread_scopes.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "amanda/log.h"
#include "backends.h"
#include "generation.h"
#include "scope_stack_use.h"

namespace amanda {

std::atomic<uint64_t> forks{0};

namespace {

thread_local ThreadScopes this_thread;

// A forked child has no open scopes: no thread there would leave them.
void forget_in_child() {
  ++forks;
  ThreadScopes& thread = this_thread;
  for (ScopeEntry& entry : thread.entries) thread.of_parent.push_back(std::move(entry.state));
  thread.entries.clear();
  if (thread.stack) thread.of_parent.push_back(std::move(thread.stack));
  thread.stack.reset();
  thread.tell_quietly();
}

const bool fork_handler = pthread_atfork(nullptr, nullptr, &forget_in_child) == 0;

}  // namespace

ThreadScopes& ThreadScopes::current() { return this_thread; }

ThreadScopes::~ThreadScopes() {
  if (!stack) return;
  stack.reset();  // otherwise a driver would use it while the thread ends
  tell_quietly();
}

bool ThreadScopes::is_active(const Tool* tool) const { return stack && stack->contains(tool); }

void ThreadScopes::tell() {
  generation = tool_generation.load();
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

void ThreadScopes::tell_quietly() noexcept {
  try {
    tell();
  } catch (...) {
    log_warning(fmt::format("[amanda] telling a driver of scopes failed: {}", describe(std::current_exception())));
  }
}

std::shared_ptr<ScopeStack> ThreadScopes::make_stack() const {
  std::vector<ScopeState*> scopes;
  ScopeStackUse::Owners owners;
  for (const ScopeEntry& entry : entries) {
    if (std::find(scopes.begin(), scopes.end(), entry.state.get()) != scopes.end()) continue;
    scopes.push_back(entry.state.get());
    owners.push_back(entry.state);
  }
  if (scopes.empty()) return nullptr;
  // Inside an operator the tools' bits are in use, and a kept stack may have assigned different ones.
  auto made = ThreadCalls::current().inside ? std::make_shared<ScopeStack>(scopes, cache.on(), stack.get())
                                            : scopes.back()->kept_stack(scopes, cache.on());
  return ScopeStackUse::begin(std::move(made), std::move(owners));
}

void ThreadScopes::ended() {
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

void refresh_this_thread() {
  if (this_thread.stack) this_thread.tell();
}

void refresh_if_stale() {
  ThreadScopes& thread = this_thread;
  if (thread.stack && thread.generation != tool_generation.load(std::memory_order_relaxed)) thread.tell();
}

bool is_open_elsewhere(const Tool& tool) { return ScopeStackUse::count(tool) > (this_thread.is_active(&tool) ? 1 : 0); }

std::shared_ptr<ScopeStack> scopes_of_this_thread() {
  return this_thread.instrumentation.on() ? this_thread.stack : nullptr;
}

}  // namespace amanda
