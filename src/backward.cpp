// Backward operators that the framework creates and runs itself.
#include "amanda/backward.h"

#include <algorithm>
#include <utility>

#include "action_cache.h"
#include "amanda/thread_calls.h"
#include "analysis.h"
#include "op_run.h"
#include "scope_stack.h"
#include "subscription.h"

namespace amanda {

HookNeeds Backward::hook_needs(ScopeStack& scopes, OpSite& backward) {
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
  return {!plan->at(Point::kBefore).empty(),
          !plan->replacements().empty(),
          !plan->at(Point::kAfter).empty(),
          plan->follows(),
          pending,
          plan->uses_run()};
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

SubscriptionPtr Backward::without(const SubscriptionPtr& seen_by, const std::vector<SubscriptionPtr>& known) {
  auto left = std::make_shared<Subscription>(*seen_by);
  for (const SubscriptionPtr& other : known) {
    for (const Subscription::Seen& tool : other->tools) {
      std::erase_if(left->tools, [&](const Subscription::Seen& seen) {
        if (!(seen == tool)) return false;
        for (ToolBits* bits : {&left->seen.outer, &left->seen.nested, &left->seen.demanded}) *bits &= ~seen.bit;
        return true;
      });
    }
  }
  if (left->tools.size() == seen_by->tools.size()) return seen_by;
  return left->seen.nobody() ? nullptr : left;
}

bool Backward::is_over(const Subscription& seen_by) noexcept {
  return std::all_of(seen_by.tools.begin(), seen_by.tools.end(),
                     [](const Subscription::Seen& seen) { return seen.alive.expired(); });
}

BackwardRun::BackwardRun(ScopeStack& scopes, OpCall& call) : call_(call) {
  ThreadCalls& here = ThreadCalls::current();
  const Visibility seen = scopes.visibility(call, here.inside);
  if (!seen.nobody()) run_ = std::make_unique<OpRun>(here, scopes, call, seen);
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
