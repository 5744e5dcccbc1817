#include "action_cache.h"

#include <array>

#include "amanda/base/lasting.h"
#include "amanda/base/per_thread.h"
#include "backends.h"
#include "generation.h"

namespace amanda {
namespace {

struct Front {
  uint64_t stack = 0, generation = 0;
  ScopeStack::PlanKey key{};
  PlanUse plan;
};
using FrontTable = std::array<Front, 1024>;

Front& front(const ScopeStack& scopes, OpId id) {
  auto& table = per_thread<FrontTable>();
  return table[(id ^ scopes.serial() * 0x9E3779B97F4A7C15ull) % table.size()];
}

}  // namespace

[[gnu::hot]] uint64_t ActionCache::generation() { return plan_generation.load(std::memory_order_acquire); }

PlanUse ActionCache::find(const ScopeStack& scopes, OpSite& site, const Visibility& seen) {
  if (!scopes.cache_enabled()) {
    refresh_if_stale();
    return {};
  }
  const ScopeStack::PlanKey key{site.id(), seen};
  if (key.id == 0) return {};
  const uint64_t generation = ActionCache::generation();
  Front& entry = front(scopes, key.id);
  if (entry.stack != scopes.serial() || entry.generation != generation || !(entry.key == key)) {
    const Lasting memory;
    refresh_if_stale();  // another thread may have changed this one's tools
    PlanPtr plan = scopes.find_plan(key, generation);
    if (!plan) return {};
    entry = {scopes.serial(), generation, key, PlanUse(std::move(plan))};
  }
  return entry.plan;
}

PlanUse ActionCache::peek(const ScopeStack& scopes, OpId id, const Visibility& seen, uint64_t generation) {
  if (!scopes.cache_enabled() || id == 0) return {};
  const Front& entry = front(scopes, id);
  const bool known =
      entry.stack == scopes.serial() && entry.generation == generation && entry.key == ScopeStack::PlanKey{id, seen};
  return known ? entry.plan : PlanUse();
}

PlanUse ActionCache::keep(const ScopeStack& scopes, OpSite& site, const Visibility& seen, uint64_t generation,
                          PlanPtr plan) {
  if (!scopes.cache_enabled() || site.id() == 0) return PlanUse(std::move(plan));
  const ScopeStack::PlanKey key{site.id(), seen};
  scopes.keep_plan(key, generation, plan);
  PlanUse use(std::move(plan));
  front(scopes, key.id) = {scopes.serial(), generation, key, use};
  return use;
}

}  // namespace amanda
