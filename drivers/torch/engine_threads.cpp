#include "engine_threads.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ThreadLocalPythonObjects.h>

#include <atomic>
#include <memory>
#include <string>

#include "keys.h"
#include "port.h"

namespace amanda::pytorch {
namespace {

using at::impl::ThreadLocalPythonObjects;

// The engine gives its threads a copy of the caller's ThreadLocalState, and that has one place for guests: a table of
// Python objects by name. Ours is none, and nobody looks into it: the pointer only travels.
const std::string& key() {
  static const auto* name = new std::string("amanda.scopes");
  return *name;
}

struct Published {
  std::atomic<ScopeStack*> scopes;  // null once the caller has others: a copy of the state may live on
};

thread_local bool is_published = false;

Published* published() {
  if (!ThreadLocalPythonObjects::contains(key())) return nullptr;
  return reinterpret_cast<Published*>(ThreadLocalPythonObjects::get(key()).get());
}

void put(ScopeStack* scopes) {
  if (Published* old = published()) old->scopes = nullptr;
  is_published = scopes != nullptr;
  if (!scopes) return ThreadLocalPythonObjects::erase(key());
  auto made = std::make_shared<Published>(scopes);
  auto* disguised = reinterpret_cast<c10::SafePyObject*>(made.get());
  ThreadLocalPythonObjects::set(key(), std::shared_ptr<c10::SafePyObject>(std::move(made), disguised));
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
  const Published* inherited = published();
  return inherited ? inherited->scopes.load() : nullptr;
}

}  // namespace amanda::pytorch
