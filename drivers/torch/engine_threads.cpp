#include "engine_threads.h"

#include <ATen/DeviceAccelerator.h>

#include <atomic>
#include <memory>

#include "keys.h"
#include "port.h"
#include "thread_guest.h"

namespace amanda::pytorch {
namespace {

struct Published {
  std::atomic<ScopeStack*> scopes;  // null once the caller has others: a copy of the state may live on
};

const ThreadGuest<Published>& guest() {
  static const auto* guest = new ThreadGuest<Published>("amanda.scopes");
  return *guest;
}

thread_local bool is_published = false;

void put(ScopeStack* scopes) {
  if (Published* old = guest().get()) old->scopes = nullptr;
  is_published = scopes != nullptr;
  guest().set(scopes ? std::make_shared<Published>(scopes) : nullptr);
}

}  // namespace

void publish_scopes(ScopeStack* scopes) {
  static const bool device_threads = at::getAccelerator(/*checked=*/false).has_value();
  if (device_threads || is_published) put(device_threads ? scopes : nullptr);
}

void publish_scopes_now() {
  if (!is_published && thread_keys().scopes) put(thread_keys().scopes);
}

ScopeStack* current_scopes() {
  if (ScopeStack* own = thread_keys().scopes) return own;
  if (!port::inside_backward()) return nullptr;
  const Published* inherited = guest().get();
  return inherited ? inherited->scopes.load() : nullptr;
}

}  // namespace amanda::pytorch
