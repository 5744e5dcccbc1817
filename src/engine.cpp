// What happens to one operator call. Read this file first.
#include "amanda/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "action_cache.h"
#include "amanda/error.h"
#include "analysis.h"
#include "backends.h"
#include "executor.h"
#include "scope_stack.h"
#include "thread_scopes.h"

namespace amanda {

void Engine::on_op(ScopeStack& scopes, OpCall& call) {
  const Visibility seen = scopes.visibility(call.backend(), call.type(), OpFrame::inside());
  if (seen.nobody()) return call.run({.observe_inner = scopes.observes_inner(OpFrame::inside())});

  CallFrame alive;
  std::optional<AnalysisSession> session;
  auto analyse = [&](Point point) {
    const uint64_t generation = ActionCache::generation();  // first: what changes meanwhile is not in the plan
    if (!session) session.emplace(scopes, call, seen);
    return ActionCache::keep(scopes, call, seen, generation, session->run(point));
  };
  PlanPtr plan = ActionCache::find(scopes, call, seen);
  if (!plan) plan = analyse(Point::kBefore);

  Execution execution(call);
  execution.run_before(*plan);
  {
    OpFrame frame(seen.outer | seen.nested | seen.demanded);
    const bool observe_inner = scopes.observes_inner(OpFrame::inside());
    if (plan->does_nothing()) return call.run({.observe_inner = observe_inner});
    execution.run_operator(*plan, observe_inner);
  }
  if (plan->after_pending()) plan = analyse(Point::kAfter);
  execution.run_after(*plan);
  call.finish();
}

PlanPtr Engine::analyse(ScopeStack& scopes, OpSite& site, Point point) {
  CallFrame alive;
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
  if (!frame || frame->call.type() != call.type() || frame->call.id() != call.id()) return call.run({});
  frame->execution.run_wrapped(frame->plan, frame->index, call, {});
  if (frame->index > 0) call.finish();
}

// ---- attached drivers -----------------------------------------------------------------------------------------------

namespace {
std::vector<Backend*> backends;
}

const std::vector<Backend*>& attached_backends() { return backends; }

void Engine::attach(Backend& backend, int seam_version) {
  if (seam_version != kSeamVersion) {
    throw Error(
        fmt::format("[engine] the driver '{}' was built for seam version {}, this core has {}; rebuild the driver",
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

// ---- what this thread is in -----------------------------------------------------------------------------------------

namespace {
thread_local ToolBits bits_inside = 0;
thread_local OpFrame* innermost = nullptr;
thread_local size_t calls = 0;
thread_local std::vector<std::shared_ptr<const void>>* kept = nullptr;  // a plain pointer: cheap to look at
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

CallFrame::CallFrame() { ++calls; }

CallFrame::~CallFrame() {
  if (--calls == 0 && kept) delete std::exchange(kept, nullptr);
}

void CallFrame::keep(std::shared_ptr<const void> dropped) {
  if (calls == 0) return;
  if (!kept) kept = new std::vector<std::shared_ptr<const void>>;
  kept->push_back(std::move(dropped));
}

}  // namespace amanda
