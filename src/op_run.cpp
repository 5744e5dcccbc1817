#include "op_run.h"

#include "amanda/base/lasting.h"

namespace amanda {
namespace {

struct ExecutionRuns final : RunSource {
  ExecutionRuns(Execution& execution, const ScopeStack& scopes, const PlanUse& forward)
      : execution(execution), scopes(scopes), forward(forward.share()) {}
  RunStatePtr run_state() override { return execution.keep_run(scopes); }
  const PlanPtr* plan() override { return &forward; }

  Execution& execution;
  const ScopeStack& scopes;
  const PlanPtr& forward;
};

}  // namespace

PlanUse OpRun::analyse(Point point) {
  const Lasting memory;
  const uint64_t generation = ActionCache::generation();  // read first: later changes are not in the plan
  if (!session_) session_.emplace(scopes_, call_, seen_);
  return ActionCache::keep(scopes_, call_, seen_, generation, session_->run(point, &call_));
}

void OpRun::before() {
  if (!plan_) plan_ = ActionCache::find(scopes_, call_, seen_);
  if (!plan_) {
    plan_ = analyse(Point::kBefore);
  } else if (!plan_->after_pending()) {
    scopes_.count_hit(thread_);
  }
  execution_.run_before(*plan_);
}

uint64_t OpRun::gradient_mask() {
  if (!gradient_mask_) gradient_mask_ = call_.gradient_mask();
  return *gradient_mask_;
}

bool OpRun::leaves_operator() { return plan_->ends_before() && !execution_.has_state() && gradient_mask() == 0; }

void OpRun::operate() {
  const bool forward = call_.phase() == Phase::kForward;
  // Inside a backward operator tools can only see recomputed forward operators, which are not parts of it.
  OpFrame frame(thread_, forward ? seen_.any() : 0);
  const bool observe_inner = scopes_.observes_inner(thread_.inside);
  if (forward && (plan_->backward() || plan_->after_pending())) {
    const uint64_t mask = gradient_mask();
    watched_ = mask != 0 || !plan_->replacements().empty();
    if (watched_) call_.watch_backward(/*keep_operands=*/mask == 0 || plan_->analysed_mask() != mask);
  }
  plain_ = plan_->does_nothing();
  if (plain_) return call_.run({.observe_inner = observe_inner});
  execution_.run_operator(*plan_, observe_inner);
}

void OpRun::after() {
  if (plan_->after_pending()) plan_ = analyse(Point::kAfter);
  if (watched_ && plan_->backward()) {
    ExecutionRuns runs(execution_, scopes_, plan_);
    plan_->set_analysed_mask(call_.bind_backward(scopes_, plan_->backward(), runs) ? gradient_mask() : 0);
  }
  if (!plain_) execution_.run_last(*plan_);
}

}  // namespace amanda
