// Backward operators that the framework creates and runs itself.
#include "amanda/driver/backward.h"

#include <algorithm>
#include <utility>

#include "action_cache.h"
#include "amanda/base/lasting.h"
#include "amanda/base/pool.h"
#include "amanda/base/thread_calls.h"
#include "analysis.h"
#include "backward_places.h"
#include "generation.h"
#include "op_run.h"
#include "scope_stack.h"
#include "subscription.h"

namespace amanda {

namespace {

/// `kept` receives the plan from which the needs are derived. It stays as it is if no tool sees the operator.
HookNeeds needs_of(ScopeStack& scopes, OpSite& backward, PlanPtr& kept) {
  const Visibility seen = scopes.visibility(backward, ThreadCalls::current().inside);
  if (seen.nobody()) return {};
  PlanUse plan = ActionCache::find(scopes, backward, seen);
  bool pending = plan && plan->after_pending();
  if (!plan) {
    const uint64_t generation = ActionCache::generation();
    AnalysisSession session(scopes, backward, seen);
    pending = session.pending(Point::kBefore) || session.pending(Point::kAfter);
    PlanPtr merged = session.merge();
    plan =
        pending ? PlanUse(std::move(merged)) : ActionCache::keep(scopes, backward, seen, generation, std::move(merged));
  }
  kept = plan.share();
  return {!plan->at(Point::kBefore).empty(),
          !plan->replacements().empty(),
          !plan->at(Point::kAfter).empty(),
          plan->follows(),
          pending,
          plan->uses_run()};
}

}  // namespace

HookNeeds Backward::hook_needs(ScopeStack& scopes, OpSite& backward) {
  PlanPtr plan;
  return needs_of(scopes, backward, plan);
}

SubscriptionPtr Backward::subscription(ScopeStack& scopes, OpSite& forward) {
  const Visibility seen = scopes.visibility(forward, ThreadCalls::current().inside);
  if (seen.nobody()) return nullptr;
  AnalysisSession session(scopes, forward, seen);
  session.note_filters();
  return session.merge()->backward();
}

RunStatePtr Backward::new_run(ScopeStack& scopes, OpSite& forward) {
  auto run = std::make_shared<RunState>();
  Execution::count(*run, scopes, forward);
  return run;
}

SubscriptionPtr Backward::without(const SubscriptionPtr& subscription, const std::vector<SubscriptionPtr>& known) {
  const auto is_known = [&](const Subscription::Seen& seen) {
    return std::any_of(known.begin(), known.end(), [&](const SubscriptionPtr& other) {
      return std::find(other->tools.begin(), other->tools.end(), seen) != other->tools.end();
    });
  };
  const size_t both = std::count_if(subscription->tools.begin(), subscription->tools.end(), is_known);
  if (both == 0) return subscription;
  if (both == subscription->tools.size()) return nullptr;
  auto left = std::make_shared<Subscription>(*subscription);
  std::erase_if(left->tools, [&](const Subscription::Seen& seen) {
    if (!is_known(seen)) return false;
    for (ToolBits* bits : {&left->seen.outer, &left->seen.nested, &left->seen.demanded}) *bits &= ~seen.bit;
    return true;
  });
  return left->seen.nobody() ? nullptr : left;
}

bool Backward::is_over(const Subscription& subscription) noexcept {
  return std::all_of(subscription.tools.begin(), subscription.tools.end(),
                     [](const Subscription::Seen& seen) { return seen.alive.expired(); });
}

// ---- with the forward operator's plan -------------------------------------------------------------------------------

BackwardBinding::BackwardBinding(ScopeStack& scopes, const Plan* forward)
    : scopes_(scopes),
      forward_(forward),
      generation_(ActionCache::generation()),
      analyses_(analyses_done.load(std::memory_order_acquire)) {}

BackwardBinding::~BackwardBinding() {
  // Without the cache, each run of the forward operator has a plan of its own.
  if (!learned_ || !forward_ || !scopes_.cache_enabled()) return;
  if (generation_ == ActionCache::generation()) forward_->backward_places().add(std::move(learned_));
}

const HookNeeds* BackwardBinding::known(size_t number, OpId id) const {
  if (!forward_) return nullptr;
  const BackwardPlace* place = forward_->backward_places().find(scopes_.serial(), generation_, analyses_, number, id);
  return place ? &place->needs : nullptr;
}

HookNeeds BackwardBinding::look_up(size_t number, OpSite& backward) {
  const Lasting memory;
  BackwardPlace place{.id = backward.id()};
  place.needs = needs_of(scopes_, backward, place.plan);
  const HookNeeds needs = place.needs;
  if (needs.pending) place.plan.reset();  // it is not the one that will run
  if (!learned_) learned_.reset(new BackwardPlaces{scopes_.serial(), generation_, {}, analyses_});
  if (learned_->places.size() <= number) learned_->places.resize(number + 1);
  learned_->places[number] = std::move(place);
  return needs;
}

PlainBackwardRun::PlainBackwardRun(ScopeStack& scopes, const std::weak_ptr<const Plan>& forward, size_t number, OpId id)
    : scopes_(scopes), forward_(forward.lock()) {
  if (!forward_) return;
  // (A pending place is never plain, so the number of analyses that have run does not matter.)
  const BackwardPlace* place =
      forward_->backward_places().find(scopes.serial(), ActionCache::generation(), /*analyses=*/0, number, id);
  if (!place) return;
  follows_ = place->needs.follow;
  is_idle_ = place->is_idle();
  if (place->is_plain()) plan_ = place->plan.get();
}

void PlainBackwardRun::before(ThreadCalls& here, OpCall& call) const {
  const CallFrame alive(here);
  scopes_.count_hit(here);
  Execution execution(call);
  execution.run_before(*plan_);
  execution.settle();
}

// ---- with calls at its beginning and end ----------------------------------------------------------------------------

struct PooledOpRun final : OpRun, Pooled<PooledOpRun> {
  using OpRun::OpRun;
};

BackwardRun::BackwardRun(ScopeStack& scopes, OpCall& call) : call_(call) {
  ThreadCalls& here = ThreadCalls::current();
  const Visibility seen = scopes.visibility(call, here.inside);
  if (!seen.nobody()) run_ = std::make_unique<PooledOpRun>(here, scopes, call, seen);
}
BackwardRun::~BackwardRun() = default;

bool BackwardRun::seen() const { return run_ != nullptr; }
void BackwardRun::before() {
  if (!run_) return;
  run_->before();
  if (!expects_end() && !replaces()) run_->settle();
}
bool BackwardRun::expects_end() const {
  if (!run_) return false;
  const Plan& plan = run_->plan();
  return plan.after_pending() || !plan.at(Point::kAfter).empty();
}
bool BackwardRun::replaces() const { return run_ && !run_->plan().replacements().empty(); }
bool BackwardRun::follows() const { return run_ && run_->plan().follows(); }
void BackwardRun::operate() {
  run_->operate();
  operated_ = true;
  if (!expects_end()) run_->settle();
}
void BackwardRun::finish() {
  if (!run_) return;
  if (operated_) {
    call_.run({});
  } else {
    run_->operate();
  }
  run_->after();
}

}  // namespace amanda
