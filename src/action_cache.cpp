#include "action_cache.h"

#include <array>
#include <memory>

#include "generation.h"

namespace amanda {
namespace {

struct Front {
  uint64_t stack = 0, generation = 0;
  ScopeStack::PlanKey key{};
  PlanPtr plan;
};
using FrontTable = std::array<Front, 1024>;

Front& front(const ScopeStack& scopes, OpId id) {
  // On the heap: a large thread-local object would not fit into the static TLS block of a library opened late.
  thread_local std::unique_ptr<FrontTable> table = std::make_unique<FrontTable>();
  return (*table)[(id ^ scopes.serial() * 0x9E3779B97F4A7C15ull) % table->size()];
}

}  // namespace

uint64_t ActionCache::generation() { return plan_generation.load(std::memory_order_acquire); }

PlanPtr ActionCache::find(const ScopeStack& scopes, OpSite& site, const Visibility& seen) {
  if (!scopes.cache_enabled() || site.id() == 0) return nullptr;
  const ScopeStack::PlanKey key{site.id(), seen};
  const uint64_t generation = ActionCache::generation();
  Front& entry = front(scopes, key.id);
  if (entry.stack != scopes.serial() || entry.generation != generation || !(entry.key == key)) {
    PlanPtr plan = scopes.find_plan(key, generation);
    if (!plan) return nullptr;
    entry = {scopes.serial(), generation, key, std::move(plan)};
  }
  return entry.plan;
}

PlanPtr ActionCache::keep(const ScopeStack& scopes, OpSite& site, const Visibility& seen, uint64_t generation,
                          PlanPtr plan) {
  if (!scopes.cache_enabled() || site.id() == 0) return plan;
  const ScopeStack::PlanKey key{site.id(), seen};
  scopes.keep_plan(key, generation, plan);
  front(scopes, key.id) = {scopes.serial(), generation, key, plan};
  return plan;
}

}  // namespace amanda
