#include "thread/engine_threads.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>

#include "amanda/driver/engine.h"
#include "amanda/scope.h"
#include "base/port.h"
#include "thread/keys.h"
#include "thread/thread_guest.h"

namespace amanda::pytorch {
namespace {

/// The data that is copied to other threads. It keeps nothing alive: a copy of a thread's state may outlive the scopes,
/// so its users borrow the scopes first.
struct Published : Guest {
  Published(std::weak_ptr<ScopeStack> scopes, std::shared_ptr<Published> covered)
      : scopes(std::move(scopes)), covered(std::move(covered)) {}

  const std::weak_ptr<ScopeStack> scopes;
  const std::shared_ptr<Published> covered;  // another thread's, on an engine thread that has its own scopes
  std::atomic<bool> over{false};             // their thread has other scopes now
};

const ThreadGuest<Published>& guest() {
  static const auto* guest = new ThreadGuest<Published>("amanda.scopes");
  return *guest;
}

/// This thread's own. At the end of the thread, PyTorch's table of guests is destroyed first.
struct Own {
  Own() { guest().get(); }  // creates the table first, so it outlives this
  ~Own() { gone = true; }
  std::shared_ptr<Published> published;
  static thread_local bool gone;
};
thread_local bool Own::gone = false;

Own& own() {
  thread_local Own own;
  return own;
}

thread_local bool is_published = false;

// Only changes data that this thread has put there: an engine thread has its caller's data.
void put(ScopeStack* scopes) {
  if (Own::gone || (!scopes && !is_published)) return;
  std::shared_ptr<Published>& mine = own().published;
  const std::shared_ptr<Published> there = guest().share();
  const bool is_mine = mine && there == mine;
  std::shared_ptr<Published> covered = is_mine ? mine->covered : there;
  if (mine) mine->over = true;
  is_published = scopes != nullptr;
  if (scopes) {
    mine = std::make_shared<Published>(Engine::scopes_here(), std::move(covered));
    guest().set(mine);
  } else {
    if (is_mine) guest().set(std::move(covered));
    mine.reset();
  }
}

}  // namespace

void CurrentScopes::hold() {
  if (scopes_ && !held_) held_ = Engine::scopes_here();
}

void publish_scopes(ScopeStack* scopes) {
  static const bool device_threads = at::getAccelerator(/*checked=*/false).has_value();
  if (device_threads || is_published) put(device_threads ? scopes : nullptr);
}

void publish_scopes_now() {
  if (!thread_keys().scopes) return;
  if (!is_published) return put(thread_keys().scopes);
  if (!Own::gone && !guest().get()) guest().set(own().published);  // it was put there inside a node, which is over
}

CurrentScopes current_scopes() {
  if (ScopeStack* mine = thread_keys().scopes) return CurrentScopes(mine);
  if (!port::inside_backward() || !is_enabled()) return {};
  const Published* inherited = guest().get();
  if (!inherited || inherited->over) return {};
  return CurrentScopes(Engine::borrow(inherited->scopes));
}

bool catch_operators(bool on) {
  const bool was_on =
      c10::impl::tls_is_dispatch_key_included(keys().filter) || c10::impl::tls_is_dispatch_key_included(keys().all);
  const CurrentScopes scopes = current_scopes();
  if (!on && port::inside_backward()) publish_scopes_now();
  if (on != was_on) include_keys(role_for(on ? scopes.get() : nullptr));
  return was_on || !scopes;
}

}  // namespace amanda::pytorch
