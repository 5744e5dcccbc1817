// Finds the plan of an operator: a table per thread in front of the scopes' plans.
#pragma once

#include "amanda/driver/known_call.h"
#include "scope_stack.h"

namespace amanda {

class ActionCache {
 public:
  /// The plan of the operator. Empty if the operator must be analyzed, or its plan merged, again.
  static PlanUse find(const ScopeStack& scopes, OpSite& site, const Visibility& seen);
  /// The same, if this thread has used the plan in this generation. Has no side effect.
  static PlanUse peek(const ScopeStack& scopes, OpId id, const Visibility& seen, uint64_t generation);
  /// The generation of all plans. A plan is valid for the generation that was read before it was made.
  static uint64_t generation();
  /// Stores `plan`, unless the cache is off or the operator has no id.
  static PlanUse keep(const ScopeStack& scopes, OpSite& site, const Visibility& seen, uint64_t generation,
                      PlanPtr plan);
};

}  // namespace amanda
