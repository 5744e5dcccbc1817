#include "thread/keys.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "amanda/driver/engine.h"
#include "amanda/error.h"

namespace amanda::pytorch {
namespace {

bool chosen = false;

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
  const c10::DispatchKeySet both({free[0], free[1]});
  // The other key may be in the set if a guard restored its bit, but one call must be one event. Tracers choose kernels
  // in Python, with a key above all others.
  const auto below = [&](c10::DispatchKey key) {
    const c10::DispatchKeySet rest(c10::DispatchKeySet::FULL_AFTER, key);
    return rest.add(c10::DispatchKey::PythonDispatcher) - both;
  };
  return {free[0], free[1], both, below(free[0]), below(free[1])};
}

}  // namespace

constinit Keys chosen_keys;

const Keys& choose_keys() {
  if (!chosen) chosen_keys = find_free_keys();
  chosen = true;
  return chosen_keys;
}

constinit thread_local ThreadKeys this_threads_keys;

void ThreadKeys::find_torch_state() {
  calls = &ThreadCalls::current();
  bits = &c10::impl::raw_local_dispatch_key_set;
  autograd = &c10::AutogradState::get_tls_state();
}

KeyRole role_for(const ScopeStack* scopes) {
  return !scopes ? KeyRole::kNone : Engine::wants_all(*scopes) ? KeyRole::kAll : KeyRole::kFilter;
}

void include_keys(KeyRole role) {
  c10::impl::tls_set_dispatch_key_included(keys().filter, role == KeyRole::kFilter);
  c10::impl::tls_set_dispatch_key_included(keys().all, role == KeyRole::kAll);
}

KeyRole key_role_here() {
  const auto is_on = [](c10::DispatchKey key) { return c10::impl::tls_is_dispatch_key_included(key); };
  return is_on(keys().all) ? KeyRole::kAll : is_on(keys().filter) ? KeyRole::kFilter : KeyRole::kNone;
}

void ThreadKeys::unblind() const {
  if (unobserved != 0 || Engine::sees_nothing_inside(*scopes)) return;
  c10::impl::tls_set_dispatch_key_excluded(keys().filter, false);
  c10::impl::tls_set_dispatch_key_excluded(keys().all, false);
}

}  // namespace amanda::pytorch
