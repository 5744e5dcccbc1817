// Finds the plan of an operator: a table per thread in front of the scopes' plans.
#pragma once

#include "scope_stack.h"

namespace amanda {

class ActionCache {
 public:
  /// Null: to be analysed or merged again.
  static PlanPtr find(const ScopeStack& scopes, OpSite& site, const Visibility& seen);
  /// Of all plans. A plan is as good as the generation that was read before it was made.
  static uint64_t generation();
  /// Remembers `plan`, unless the cache is off or the operator has no id. Returns it.
  static PlanPtr keep(const ScopeStack& scopes, OpSite& site, const Visibility& seen, uint64_t generation,
                      PlanPtr plan);
};

}  // namespace amanda
