#include "dispatch/registration.h"

#include <torch/library.h>

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "amanda/base/mutex.h"
#include "amanda/driver/engine.h"
#include "amanda/tool.h"
#include "amanda/torch.h"
#include "base/op_types.h"
#include "dispatch/fallback.h"
#include "dispatch/registered_operators.h"
#include "dispatch/typed_kernels.h"
#include "thread/keys.h"

namespace amanda::pytorch {
namespace {

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

// Also catches `op` on the filter key, from now on and for the life of the process: removing a kernel fails while other
// threads have the key on.
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

class NewOperators final : public c10::OpRegistrationListener {
 public:
  // Called while the dispatcher holds its lock: no kernel can be registered here.
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    registered_operators().add(op.operator_name());
    ThreadKeys& thread = thread_keys();
    if (thread.role != KeyRole::kFilter) return;
    const OpRecord& record = op_types().of(op);
    if (record.noise || !Engine::wants(*thread.scopes, backend(), record.type)) return;
    thread.role = KeyRole::kAll;  // until the scope is entered again, which promotes the new operator
    thread.restore();
  }

  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    registered_operators().remove(op.operator_name());
    op_types().forget(op);
  }
};

}  // namespace

void register_kernels() {
  const Keys& keys = choose_keys();
  install_fallback(keys.filter, torch::CppFunction::makeFallthrough());
  install_fallback(keys.all, torch::CppFunction::makeFromBoxedFunction<&catch_all>());
  each_typed_kernel(KeyRole::kAll, [&](const c10::OperatorHandle& op, const c10::KernelFunction& kernel) {
    install_kernel(op, keys.all, kernel);
  });
  // Leaked: operators are deregistered while the process ends.
  new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<NewOperators>()));
}

void promote_wanted(std::vector<std::string> patterns) {
  const uint64_t additions =
      registered_operators().drop_settled(patterns);  // read first: later operators are not found
  for (const std::string& pattern : patterns) {
    for (const c10::OperatorName& name : registered_operators().matching(pattern)) {
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (op && !op_types().of(*op).noise) promote(*op);
    }
  }
  registered_operators().settle(patterns, additions);
}

size_t count_promoted() {
  std::lock_guard lock(promotion_mutex);
  return promoted().size();
}

}  // namespace amanda::pytorch
