#include "scope_stack_use.h"

#include <mutex>
#include <unordered_map>

#include "amanda/base/leaked.h"
#include "amanda/base/mutex.h"

namespace amanda {
namespace {

/// The number of threads on which each tool is open. Tools are only compared: a use may end after the tools are
/// destroyed.
struct OpenTools {
  Mutex mutex;
  std::unordered_map<const Tool*, size_t> threads;
};

}  // namespace

ScopeStackUse::ScopeStackUse(std::shared_ptr<ScopeStack> stack, Owners owners)
    : stack_(std::move(stack)), owners_(std::move(owners)) {
  stack_->uses_.fetch_add(1);
  auto& open = leaked<OpenTools>();
  std::lock_guard lock(open.mutex);
  for (const ActiveTool& active : stack_->tools_) ++open.threads[active.tool];
}

ScopeStackUse::~ScopeStackUse() {
  stack_->uses_.fetch_sub(1);
  auto& open = leaked<OpenTools>();
  std::lock_guard lock(open.mutex);
  for (const ActiveTool& active : stack_->tools_) {
    if (auto found = open.threads.find(active.tool); --found->second == 0) open.threads.erase(found);
  }
}

size_t ScopeStackUse::count(const Tool& tool) {
  auto& open = leaked<OpenTools>();
  std::lock_guard lock(open.mutex);
  const auto found = open.threads.find(&tool);
  return found == open.threads.end() ? 0 : found->second;
}

std::shared_ptr<ScopeStack> ScopeStackUse::begin(std::shared_ptr<ScopeStack> stack, Owners owners) {
  ScopeStack* raw = stack.get();
  auto use = std::make_shared<ScopeStackUse>(std::move(stack), std::move(owners));
  return {std::move(use), raw};
}

}  // namespace amanda
