#include "thread/keys.h"

#include <torch/library.h>

#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "amanda/engine.h"
#include "amanda/error.h"
#include "amanda/mutex.h"
#include "amanda/tool.h"
#include "base/op_types.h"
#include "dispatch/fallback.h"
#include "dispatch/typed_kernels.h"
#include "thread/engine_threads.h"
#include "torch_backend.h"

namespace amanda::pytorch {
namespace {

std::optional<Keys> chosen;

Keys choose_keys() {
  // In order of preference. None is used by torch itself; torch's own tests register on GenericMode. DeferredInit is
  // below torch.func and Python's modes: on it, tools would see what a transform calls in place of what it transforms.
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

void install_fallback(c10::DispatchKey key, torch::CppFunction&& function) {
  // Leaked: the fallback stays while any thread may have the key on.
  auto* library = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library->fallback(std::move(function));
}

// Leaked, as above.
void install_kernel(const c10::OperatorHandle& op, c10::DispatchKey key, const c10::KernelFunction& kernel) {
  new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().registerImpl(op.operator_name(), key, kernel, std::nullopt, nullptr, "amanda"));
}

// For promotion, by operator name.
const std::unordered_map<std::string, c10::KernelFunction>& typed_filter_kernels() {
  static const auto* kernels = [] {
    auto* made = new std::unordered_map<std::string, c10::KernelFunction>;
    each_typed_kernel(KeyRole::kFilter, [&](const c10::OperatorHandle& op, const c10::KernelFunction& kernel) {
      made->emplace(c10::toString(op.operator_name()), kernel);
    });
    return made;
  }();
  return *kernels;
}

Mutex promotion_mutex;
std::unordered_set<std::string>& promoted() {
  static auto* names = new std::unordered_set<std::string>;
  return *names;
}
// Patterns whose operators are all promoted, as of the number of operators that were registered then.
std::unordered_set<std::string>& settled() {
  static auto* patterns = new std::unordered_set<std::string>;
  return *patterns;
}
uint64_t settled_registrations = 0;

}  // namespace

const Keys& keys() { return *chosen; }

void install_keys() {
  if (chosen) return;
  chosen = choose_keys();
  install_fallback(chosen->filter, torch::CppFunction::makeFallthrough());
  install_fallback(chosen->all, torch::CppFunction::makeFromBoxedFunction<&catch_all>());
  each_typed_kernel(KeyRole::kAll, [](const c10::OperatorHandle& op, const c10::KernelFunction& kernel) {
    install_kernel(op, chosen->all, kernel);
  });
}

void promote(const c10::OperatorHandle& op) {
  const std::string name = c10::toString(op.operator_name());
  {
    std::lock_guard lock(promotion_mutex);
    if (!promoted().insert(name).second) return;
  }
  const auto typed = typed_filter_kernels().find(name);
  install_kernel(op, keys().filter,
                 typed != typed_filter_kernels().end() ? typed->second
                                                       : c10::KernelFunction::makeFromBoxedFunction<&catch_filtered>());
}

void promote_wanted(std::vector<std::string> patterns) {
  const uint64_t registrations = op_types().registrations();
  {
    std::lock_guard lock(promotion_mutex);
    if (settled_registrations != registrations) settled().clear();
    settled_registrations = registrations;
    std::erase_if(patterns, [](const std::string& pattern) { return settled().contains(pattern); });
  }
  if (patterns.empty()) return;
  const OpFilter wanted(patterns);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema()) continue;
    const OpRecord& record = op_types().of(*op);
    if (!record.noise && wanted.matches(record.info)) promote(*op);
  }
  std::lock_guard lock(promotion_mutex);
  if (settled_registrations == registrations) settled().insert(patterns.begin(), patterns.end());
}

size_t count_promoted() {
  std::lock_guard lock(promotion_mutex);
  return promoted().size();
}

ThreadKeys& thread_keys() {
  thread_local constinit ThreadKeys keys;
  return keys;
}

KeyRole role_for(const ScopeStack* scopes) {
  return !scopes ? KeyRole::kNone : Engine::wants_all(*scopes) ? KeyRole::kAll : KeyRole::kFilter;
}

namespace {
void include(KeyRole role) {
  c10::impl::tls_set_dispatch_key_included(keys().filter, role == KeyRole::kFilter);
  c10::impl::tls_set_dispatch_key_included(keys().all, role == KeyRole::kAll);
}
}  // namespace

void ThreadKeys::restore() const { include(role); }

void ThreadKeys::unblind() const {
  if (unobserved != 0 || Engine::sees_nothing_inside(*scopes)) return;
  c10::impl::tls_set_dispatch_key_excluded(keys().filter, false);
  c10::impl::tls_set_dispatch_key_excluded(keys().all, false);
}

bool catch_operators(bool on) {
  const bool was_on =
      c10::impl::tls_is_dispatch_key_included(keys().filter) || c10::impl::tls_is_dispatch_key_included(keys().all);
  const CurrentScopes scopes = current_scopes();
  if (on != was_on) include(role_for(on ? scopes.get() : nullptr));
  return was_on || !scopes;
}

}  // namespace amanda::pytorch
