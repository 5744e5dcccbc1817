// The core's findings about calls: a driver keeps them with an operator's type and place, and need not ask again.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "amanda/base/thread_calls.h"
#include "amanda/driver/backend.h"

namespace amanda {

/// Changes when the plan of some operator may have changed, or the operators that a tool asks for.
extern std::atomic<uint64_t> plan_generation;

/// A plan that a thread uses: it stays alive meanwhile, even if the thread's tables drop it. It must stay on its
/// thread, because its reference count is not atomic. A copy costs under 1 ns; a std::shared_ptr costs 40 ns, and 60
/// where two threads share the plan (measured on a virtual machine: an operator's whole hit in the cache takes some
/// 260 ns).
class PlanUse {
 public:
  /// No plan.
  PlanUse() = default;
  /// The first use of `plan`.
  explicit PlanUse(PlanPtr plan) : held_(new Held{std::move(plan), 1}) {}
  /// One more use.
  PlanUse(const PlanUse& other) : held_(other.held_) {
    if (held_) ++held_->uses;
  }
  /// Takes the other's use over.
  PlanUse(PlanUse&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  /// Ends its use, and takes the other's over.
  PlanUse& operator=(PlanUse other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~PlanUse() {
    if (held_ && --held_->uses == 0) delete held_;
  }

  /// True if it is a use of a plan.
  explicit operator bool() const { return held_ != nullptr; }
  /// The plan.
  const Plan& operator*() const { return *held_->plan; }
  /// A member of the plan.
  const Plan* operator->() const { return held_->plan.get(); }
  /// The plan, to be kept for longer.
  const PlanPtr& share() const { return held_->plan; }

 private:
  struct Held {
    PlanPtr plan;
    size_t uses;
  };
  Held* held_ = nullptr;
};

/// The tools that see calls of an operator type, on the thread that asked, inside the operators that this thread was
/// in.
class Sight {
 public:
  /// True if this is still known, on the same thread. `scopes`: Engine::serial() of the thread's scopes.
  bool holds(uint64_t scopes, const ThreadCalls& here) const {
    return scopes_ == scopes && inside_ == here.inside &&
           generation_ == plan_generation.load(std::memory_order_acquire);
  }
  /// The tools that see the operator. 0 if none does.
  ToolBits seeing() const { return seeing_; }
  /// True if a tool may ask for an operator inside this one.
  bool observes_inner() const { return observes_inner_; }

 private:
  friend class Engine;
  friend class KnownCall;
  uint64_t scopes_ = 0, generation_ = 0;
  ToolBits inside_ = 0, seeing_ = 0;
  bool observes_inner_ = false;
};

/// The actions that tools have scheduled on the calls at one place, if no analysis remains.
class KnownCall {
 public:
  /// True if something is known.
  bool is_known() const { return scopes_ != 0; }
  /// True if these are the actions that are scheduled on a call that these tools see. `sight` must hold.
  bool holds(const Sight& sight) const {
    return scopes_ == sight.scopes_ && generation_ == sight.generation_ && inside_ == sight.inside_;
  }
  /// True if both were found for the same scopes. Those of the other may have closed.
  bool has_scopes_of(const KnownCall& other) const { return scopes_ == other.scopes_; }
  /// True if nothing is scheduled, also not on backward operators. The driver may then run the operator itself, as
  /// Engine::on_op() would: inside an OpFrame of the tools that see it. The driver calls Engine::count_hit().
  bool does_nothing() const { return !plan_; }

 private:
  friend class Engine;
  uint64_t scopes_ = 0, generation_ = 0;  // 0 if nothing is known
  ToolBits inside_ = 0;
  PlanUse plan_;
};

}  // namespace amanda
