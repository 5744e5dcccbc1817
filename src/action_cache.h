// Finds the plan of an operator: a table per thread in front of the scopes' plans.
#pragma once

#include <utility>

#include "scope_stack.h"

namespace amanda {

/// A plan that this thread uses: it stays alive meanwhile, even if the table drops it. It must stay on its thread,
/// because its reference count is not atomic. A copy costs under 1 ns; a std::shared_ptr costs 40 ns, and 60 where two
/// threads share the plan (measured on a virtual machine: an operator's whole hit in the cache takes some 260 ns).
class PlanUse {
 public:
  struct Held {
    PlanPtr plan;
    size_t uses;
  };

  PlanUse() = default;
  explicit PlanUse(PlanPtr plan) : held_(new Held{std::move(plan), 1}) {}
  PlanUse(const PlanUse& other) : held_(other.held_) {
    if (held_) ++held_->uses;
  }
  PlanUse(PlanUse&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  PlanUse& operator=(PlanUse other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~PlanUse() {
    if (held_ && --held_->uses == 0) delete held_;
  }

  explicit operator bool() const { return held_ != nullptr; }
  const Plan& operator*() const { return *held_->plan; }
  const Plan* operator->() const { return held_->plan.get(); }
  const PlanPtr& share() const { return held_->plan; }

 private:
  Held* held_ = nullptr;
};

class ActionCache {
 public:
  /// Empty: analyze or merge again.
  static PlanUse find(const ScopeStack& scopes, OpSite& site, const Visibility& seen);
  /// Of all plans. A plan is valid for the generation that was read before it was made.
  static uint64_t generation();
  /// Stores `plan`, unless the cache is off or the operator has no id.
  static PlanUse keep(const ScopeStack& scopes, OpSite& site, const Visibility& seen, uint64_t generation,
                      PlanPtr plan);
};

}  // namespace amanda
