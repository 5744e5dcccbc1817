#include "thread/keys.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <vector>

#include "amanda/engine.h"
#include "amanda/error.h"

namespace amanda::pytorch {
namespace {

std::optional<Keys> chosen;

Keys find_free_keys() {
  // In order of preference. None is used by torch itself; torch's own tests register on GenericMode. DeferredInit is
  // below torch.func and Python's modes: on it, tools would see a transform's inner calls instead of the operator that
  // it transforms.
  constexpr c10::DispatchKey kCandidates[] = {c10::DispatchKey::TESTING_ONLY_GenericWrapper,
                                              c10::DispatchKey::TESTING_ONLY_GenericMode,
                                              c10::DispatchKey::DeferredInit};
  std::vector<c10::DispatchKey> free;
  for (c10::DispatchKey key : kCandidates) {
    if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) free.push_back(key);
  }
  if (free.size() < 2) {
    throw Error(
        "[torch] two of the dispatch keys TESTING_ONLY_GenericWrapper, TESTING_ONLY_GenericMode and DeferredInit "
        "must be free, and other libraries have taken them; import amanda without those");
  }
  return {free[0], free[1], c10::DispatchKeySet({free[0], free[1]})};
}

}  // namespace

const Keys& keys() { return *chosen; }

const Keys& choose_keys() {
  if (!chosen) chosen = find_free_keys();
  return *chosen;
}

ThreadKeys& thread_keys() {
  thread_local constinit ThreadKeys keys;
  return keys;
}

KeyRole role_for(const ScopeStack* scopes) {
  return !scopes ? KeyRole::kNone : Engine::wants_all(*scopes) ? KeyRole::kAll : KeyRole::kFilter;
}

void include_keys(KeyRole role) {
  c10::impl::tls_set_dispatch_key_included(keys().filter, role == KeyRole::kFilter);
  c10::impl::tls_set_dispatch_key_included(keys().all, role == KeyRole::kAll);
}

void ThreadKeys::unblind() const {
  if (unobserved != 0 || Engine::sees_nothing_inside(*scopes)) return;
  c10::impl::tls_set_dispatch_key_excluded(keys().filter, false);
  c10::impl::tls_set_dispatch_key_excluded(keys().all, false);
}

}  // namespace amanda::pytorch
