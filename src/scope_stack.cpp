#include "scope_stack.h"

#include <fmt/format.h>

#include <algorithm>

#include "amanda/base/thread_calls.h"
#include "amanda/error.h"
#include "generation.h"
#include "resolver.h"
#include "subscription.h"

namespace amanda {

namespace {

std::atomic<uint64_t> next_stack_serial{1};

ToolBits lowest_free(ToolBits used) {
  if (used == ~ToolBits{0}) {
    throw Error(
        fmt::format("[scope] more than {} tools are active on this thread; leave a scope first", kMaxActiveTools));
  }
  return ~used & (used + 1);
}

}  // namespace

ScopeStack::ScopeStack(std::vector<ScopeState*> scopes, bool cache_enabled, const ScopeStack* previous)
    : scopes_(std::move(scopes)), cache_enabled_(cache_enabled), serial_(next_stack_serial++) {
  ToolBits used = ThreadCalls::current().inside;  // by tools inside an operator, even if their scope was left since
  auto bit_before = [&](const Tool* tool) -> ToolBits {
    if (!previous) return 0;
    for (const ActiveTool& active : previous->tools_) {
      if (active.tool == tool) return active.bit;
    }
    return 0;
  };
  for (ScopeState* scope : scopes_) {
    serials_.push_back(scope->serial());
    for (Tool* tool : scope->tools()) {
      if (contains(tool)) continue;  // a tool already active runs once
      const ToolBits bit = bit_before(tool);
      used |= bit;
      tools_.push_back({tool, scope, bit, nullptr, 0});
    }
  }
  for (ActiveTool& active : tools_) {
    if (active.bit == 0) used |= active.bit = lowest_free(used);
  }
  rebuild();
}

ScopeStack::~ScopeStack() = default;

bool ScopeStack::is_made_of(const std::vector<ScopeState*>& scopes, bool cache_enabled) const {
  return cache_enabled == cache_enabled_ &&
         std::equal(scopes.begin(), scopes.end(), serials_.begin(), serials_.end(),
                    [](const ScopeState* scope, uint64_t serial) { return scope->serial() == serial; });
}

bool ScopeStack::contains(const Tool* tool) const {
  return std::any_of(tools_.begin(), tools_.end(), [&](const ActiveTool& active) { return active.tool == tool; });
}

uint64_t ScopeStack::tool_generation_now() { return tool_generation.load(std::memory_order_relaxed); }

std::shared_ptr<const ScopeStack::Tables> ScopeStack::share_tables() const {
  std::lock_guard lock(mutex_);
  const auto& current = all_tables_.back();
  if (current->generation == tool_generation_now()) return current;
  return rebuild_locked();
}

std::shared_ptr<const ScopeStack::Tables> ScopeStack::rebuild() const {
  std::lock_guard lock(mutex_);
  return rebuild_locked();
}

std::shared_ptr<const ScopeStack::Tables> ScopeStack::rebuild_locked() const {
  const uint64_t generation = tool_generation.load();
  const Tables* current = tables_.load();
  if (current && current->generation == generation) return all_tables_.back();
  auto made = make_tables(generation);
  if (current && current->tools == made->tools) {
    current->generation.store(generation);  // another tool changed: a loop that creates tools must not fill the memory
    return all_tables_.back();
  }
  all_tables_.push_back(std::move(made));
  tables_.store(all_tables_.back().get(), std::memory_order_release);
  // A thread that starts to use the stack and sees this number finds the new tables. (A plain read would not guarantee
  // that.)
  const bool alone = uses_.fetch_add(0, std::memory_order_acq_rel) <= 1;
  if (alone) all_tables_.erase(all_tables_.begin(), all_tables_.end() - 1);
  return all_tables_.back();
}

std::shared_ptr<ScopeStack::Tables> ScopeStack::make_tables(uint64_t generation) const {
  auto tables = std::make_shared<Tables>();
  tables->generation = generation;
  for (ActiveTool active : tools_) {
    if (active.scope->stopped(active.tool)) continue;
    active.registrations = active.tool->registrations();
    for (const Registration& registration : *active.registrations) {
      tables->any_modules |= !registration.options.modules.matches_all();
      if (registration.options.ops.is_on_demand()) {
        for (const ActiveTool& other : tools_) {
          if (depends(*other.tool, *active.tool)) active.dependents |= other.bit;
        }
        tables->any_on_demand = true;
        continue;
      }
      tables->askers |= active.bit;
      if (registration.options.nested) tables->nested_askers |= active.bit;
      if (registration.options.ops.matches_all()) tables->any_wants_all = true;
    }
    tables->tools.push_back(std::move(active));
  }
  return tables;
}

Visibility ScopeStack::visibility(const Backend& backend, OpType type, ToolBits inside) const {
  const Tables& now = tables();
  const WantTable::Wants wants = now.wants[backend.index()].get(type, [&] {
    WantTable::Wants found;
    const OpInfo& info = backend.info(type);
    for (const ActiveTool& active : now.tools) {
      for (const Registration& registration : *active.registrations) {
        if (!registration.options.ops.matches(info)) continue;  // forward or backward: it asks for the operator
        found.outer |= active.bit;
        if (registration.options.nested) found.nested |= active.bit;
      }
    }
    return found;
  });
  Visibility seen{wants.outer & ~inside, wants.nested & inside, 0, backend.index()};
  if (now.any_on_demand && !seen.nobody()) {
    ToolBits all = seen.outer | seen.nested;
    for (auto it = now.tools.rbegin(); it != now.tools.rend(); ++it) {  // dependents come after their dependencies
      if (it->dependents & all) {
        seen.demanded |= it->bit;
        all |= it->bit;
      }
    }
  }
  return seen;
}

Visibility ScopeStack::visibility(const Subscription& subscription) const {
  if (subscription.stack == serial_) return subscription.seen;
  Visibility seen{.backend = subscription.seen.backend};
  for (const ActiveTool& active : tables().tools) {
    for (const Subscription::Seen& known : subscription.tools) {
      if (known.tool != active.tool || known.scope != active.scope->serial()) continue;
      if (subscription.seen.outer & known.bit) seen.outer |= active.bit;
      if (subscription.seen.nested & known.bit) seen.nested |= active.bit;
      if (subscription.seen.demanded & known.bit) seen.demanded |= active.bit;
    }
  }
  return seen;
}

SubscriptionPtr ScopeStack::subscription(const Visibility& seen) const {
  std::lock_guard lock(mutex_);
  for (const SubscriptionPtr& known : subscriptions_) {
    if (known->seen == seen) return known;
  }
  auto made = std::make_shared<Subscription>(Subscription{serial_, seen, {}});
  for (const ActiveTool& active : tools_) {
    if (seen.any() & active.bit)
      made->tools.push_back({active.tool, active.scope->serial(), active.bit, active.scope->weak_from_this()});
  }
  subscriptions_.push_back(made);
  return made;
}

bool ScopeStack::observes_inner(ToolBits inside) const {
  const Tables& now = tables();
  return (now.askers & ~inside) != 0 || now.nested_askers != 0;
}

PlanPtr ScopeStack::find_plan(const PlanKey& key, uint64_t generation) const {
  std::lock_guard lock(mutex_);
  if (plans_generation_ != generation) return nullptr;
  auto found = plans_.find(key);
  return found == plans_.end() ? nullptr : found->second;
}

void ScopeStack::keep_plan(const PlanKey& key, uint64_t generation, PlanPtr plan) const {
  std::unordered_map<PlanKey, PlanPtr, KeyHash> stale;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  if (plans_generation_ > generation) return;
  if (plans_generation_ < generation) {
    plans_generation_ = generation;
    stale.swap(plans_);
  }
  constexpr size_t kMostPlans = 1 << 17;
  if (plans_.size() >= kMostPlans) stale.swap(plans_);
  plans_[key].swap(plan);  // destroyed outside the lock too
}

std::shared_ptr<ScopeStack> ScopeState::kept_stack(const std::vector<ScopeState*>& scopes, bool cache_enabled) {
  constexpr size_t kKept = 8;          // ways to nest one scope object in others
  std::shared_ptr<ScopeStack> oldest;  // destroyed outside the lock: its plans may own a binding's objects
  std::lock_guard lock(mutex_);
  for (const auto& stack : stacks_) {
    if (stack->is_made_of(scopes, cache_enabled)) return stack;
  }
  if (stacks_.size() == kKept) {
    oldest = std::move(stacks_.front());
    stacks_.erase(stacks_.begin());
  }
  return stacks_.emplace_back(std::make_shared<ScopeStack>(scopes, cache_enabled, nullptr));
}

}  // namespace amanda
