// What happens to one operator call. Read this file first.
#include "amanda/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "action_cache.h"
#include "amanda/error.h"
#include "analysis.h"
#include "backends.h"
#include "executor.h"
#include "routine_guard.h"
#include "scope_stack.h"
#include "thread_scopes.h"

namespace amanda {

void Engine::on_op(ScopeStack& scopes, OpCall& call) {
  const Visibility seen = scopes.visibility(call.backend(), call.type(), OpFrame::inside());
  if (seen.nobody()) return call.run({.observe_inner = scopes.observes_inner(OpFrame::inside())});

  PlanPtr plan = ActionCache::find(scopes, call, seen);
  if (!plan) plan = ActionCache::keep(scopes, call, seen, AnalysisSession(scopes, call, seen).run(Point::kBefore));

  Execution execution(call);
  execution.run_before(*plan);
  {
    OpFrame frame(seen.outer | seen.nested | seen.demanded);
    const bool observe_inner = scopes.observes_inner(OpFrame::inside());
    if (plan->does_nothing()) return call.run({.observe_inner = observe_inner});
    execution.run_operator(*plan, observe_inner);
  }
  if (plan->after_pending()) {
    plan = ActionCache::keep(scopes, call, seen, AnalysisSession(scopes, call, seen).run(Point::kAfter));
  }
  execution.run_after(*plan);
  call.finish();
}

PlanPtr Engine::analyse(ScopeStack& scopes, OpSite& site, Point point) {
  const Visibility seen = scopes.visibility(site.backend(), site.type(), OpFrame::inside());
  return AnalysisSession(scopes, site, seen).run(point);
}

void Engine::run(const Plan& plan, Point point, OpCall& call) {
  Execution execution(call);
  switch (point) {
    case Point::kBefore: return execution.run_before(plan);
    case Point::kReplace: return execution.run_operator(plan, false);
    case Point::kAfter: return execution.run_after(plan);
  }
}

bool Engine::has_actions(const Plan& plan, Point point) noexcept { return !plan.at(point).empty(); }

bool Engine::wants(const ScopeStack& scopes, const Backend& backend, OpType type) noexcept {
  return !scopes.visibility(backend, type, 0).nobody();
}

bool Engine::wants_all(const ScopeStack& scopes) noexcept { return scopes.tables().any_wants_all; }

uint64_t Engine::revision(const ScopeStack& scopes) noexcept { return scopes.tables().revision; }

void Engine::call_original(OpCall& call) {
  ReplacementFrame* frame = ReplacementFrame::current();
  if (frame && frame->index > 0 && frame->call.type() == call.type() && frame->call.id() == call.id()) {
    RoutineGuard unobserved(call.backend(), RoutineMode::kAmbient);
    frame->execution.run_replacement(frame->plan, frame->index - 1, call);
    return call.finish();
  }
  call.run({});
}

// ---- attached drivers -----------------------------------------------------------------------------------------------

namespace {
std::vector<Backend*> backends;
}

const std::vector<Backend*>& attached_backends() { return backends; }

void Engine::attach(Backend& backend, int seam_version) {
  if (seam_version != kSeamVersion) {
    throw Error(fmt::format("[engine] the driver '{}' was built for seam version {}, this core has {}; rebuild the driver",
                            backend.name_space(), seam_version, kSeamVersion));
  }
  if (std::find(backends.begin(), backends.end(), &backend) != backends.end()) return;
  if (backends.size() == kMaxBackends) {
    throw Error(fmt::format("[engine] '{}' would be driver {}; at most {} can be attached", backend.name_space(),
                            kMaxBackends + 1, kMaxBackends));
  }
  backend.index_ = backends.size();
  backends.push_back(&backend);
  refresh_this_thread();
}

// ---- which tools are inside an operator, on this thread -------------------------------------------------------------

namespace {
thread_local ToolBits bits_inside = 0;
thread_local OpFrame* innermost = nullptr;
}  // namespace

OpFrame::OpFrame(ToolBits seeing) : seeing_(seeing), inside_before_(bits_inside), outer_(innermost) {
  bits_inside |= seeing;
  innermost = this;
}

OpFrame::~OpFrame() {
  bits_inside = inside_before_;
  innermost = outer_;
}

ToolBits OpFrame::inside() { return bits_inside; }

size_t OpFrame::depth(ToolBits tool) {
  size_t depth = 0;
  for (const OpFrame* frame = innermost; frame; frame = frame->outer_) depth += (frame->seeing_ & tool) != 0;
  return depth;
}

}  // namespace amanda
