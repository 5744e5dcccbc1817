#include "toolset.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "amanda/base/leaked.h"
#include "amanda/base/mutex.h"
#include "generation.h"
#include "scope_stack.h"

namespace amanda {
namespace {

/// The definition of a toolset, as numbers that only grow: each scope's serial number and count of clears, and each
/// tool's count of changes.
template <class Scopes>
std::vector<uint64_t> numbers(const Scopes& scopes) {
  std::vector<uint64_t> made_of;
  for (const auto& scope : scopes) {
    made_of.insert(made_of.end(), {scope->serial(), scope->clears});
    for (const Tool* tool : scope->tools()) made_of.push_back(tool->version() + scope->status(tool)->changes);
  }
  return made_of;
}

struct ScopesToolset final : Toolset {
  void set_key(uint64_t key) { key_ = key; }
  static const ScopesToolset& of(const Toolset& toolset) { return static_cast<const ScopesToolset&>(toolset); }

  std::vector<uint64_t> made_of;
  std::vector<std::weak_ptr<ScopeState>> scopes;  // outermost first
  std::vector<const Tool*> inside;                // only compared
  bool cached = true;                             // otherwise it is valid for one call
};

/// Toolsets that are alive: two stacks of the same scopes share one.
struct KnownToolsets {
  Mutex mutex;
  std::map<std::vector<uint64_t>, std::weak_ptr<const Toolset>> toolsets;
  uint64_t next_key = 1;
};

}  // namespace

ToolsetPtr ScopeStack::toolset(ToolBits inside) const {
  const uint64_t generation = plan_generation.load(std::memory_order_acquire);  // includes changes of tools
  if (inside == 0 && cache_enabled_) {
    std::lock_guard lock(mutex_);
    if (toolset_ && toolset_generation_ == generation) return toolset_;
  }
  auto made = std::make_shared<ScopesToolset>();
  std::vector<uint64_t> key = made->made_of = numbers(scopes_);
  for (const ActiveTool& active : share_tables()->tools) {
    if (!(active.bit & inside)) continue;
    made->inside.push_back(active.tool);
    key.push_back(reinterpret_cast<uintptr_t>(active.tool));
  }
  made->cached = cache_enabled_;
  for (ScopeState* scope : scopes_) made->scopes.push_back(scope->weak_from_this());
  ToolsetPtr result;
  {
    auto& known = leaked<KnownToolsets>();
    std::lock_guard lock(known.mutex);
    std::weak_ptr<const Toolset> uncached;
    std::erase_if(known.toolsets, [](const auto& one) { return one.second.expired(); });
    std::weak_ptr<const Toolset>& entry = cache_enabled_ ? known.toolsets[key] : uncached;
    result = entry.lock();
    if (!result) {
      made->set_key(known.next_key++);
      entry = result = made;
    }
  }
  if (inside == 0 && cache_enabled_) {
    ToolsetPtr old;  // released outside the lock
    std::lock_guard lock(mutex_);
    old = std::exchange(toolset_, result);
    toolset_generation_ = generation;
  }
  return result;
}

bool Toolset::is_over() const noexcept {
  const ScopesToolset& self = ScopesToolset::of(*this);
  if (!self.cached) return true;
  std::vector<std::shared_ptr<ScopeState>> alive;
  for (const auto& weak : self.scopes) {
    alive.push_back(weak.lock());
    if (!alive.back()) return true;
  }
  return numbers(alive) != self.made_of;
}

OpenToolset::OpenToolset(const Toolset& given) {
  const ScopesToolset& toolset = ScopesToolset::of(given);
  std::vector<ScopeState*> scopes;
  for (const auto& weak : toolset.scopes) {
    alive_.push_back(weak.lock());
    if (!alive_.back()) return;
    scopes.push_back(alive_.back().get());
  }
  stack_ = scopes.back()->kept_stack(scopes, toolset.cached);
  for (const ActiveTool& active : stack_->share_tables()->tools) {
    const auto& inside = toolset.inside;
    if (std::find(inside.begin(), inside.end(), active.tool) != inside.end()) inside_ |= active.bit;
  }
}

}  // namespace amanda
