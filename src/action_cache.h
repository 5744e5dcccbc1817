// Finds the plan of an operator: a table per thread in front of the scopes' plans.
#pragma once

#include "scope_stack.h"

namespace amanda {

class ActionCache {
 public:
  /// Null: to be analysed or merged again.
  static PlanPtr find(const ScopeStack& scopes, OpCall& call, const Visibility& seen);
  /// Remembers `plan`, unless the cache is off or the operator has no id. Returns it.
  static PlanPtr keep(const ScopeStack& scopes, OpCall& call, const Visibility& seen, PlanPtr plan);
};

}  // namespace amanda
