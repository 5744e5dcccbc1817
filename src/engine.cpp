// What happens to one operator call. Read this file first.
#include "amanda/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "action_cache.h"
#include "amanda/error.h"
#include "amanda/mutex.h"
#include "analysis.h"
#include "backends.h"
#include "executor.h"
#include "op_run.h"
#include "scope_stack.h"
#include "sighting.h"
#include "thread_scopes.h"

namespace amanda {

namespace {

Visibility seen_by_tools(const ScopeStack& scopes, const OpSite& site, const ThreadCalls& here) {
  if (site.phase() == Phase::kForward) return scopes.visibility(site.backend(), site.type(), here.inside);
  return site.sighting() ? scopes.visibility(*site.sighting()) : Visibility{};
}

}  // namespace

void Engine::on_op(ScopeStack& scopes, OpCall& call) {
  ThreadCalls& here = ThreadCalls::current();
  const Visibility seen = seen_by_tools(scopes, call, here);
  if (seen.nobody()) return call.run({.observe_inner = scopes.observes_inner(here.inside)});
  OpRun run(here, scopes, call, seen);
  run.before();
  run.operate();
  run.after();
}

// ---- backward operators that the framework runs itself --------------------------------------------------------------

Engine::Interest Engine::interest(ScopeStack& scopes, OpSite& backward) {
  const Visibility seen = seen_by_tools(scopes, backward, ThreadCalls::current());
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
  return {!plan->at(Point::kBefore).empty(), !plan->replacements().empty(), !plan->at(Point::kAfter).empty(),
          plan->follows(), pending};
}

SightingPtr Engine::sighting(ScopeStack& scopes, OpSite& forward) {
  const Visibility seen = seen_by_tools(scopes, forward, ThreadCalls::current());
  return seen.nobody() ? nullptr : AnalysisSession(scopes, forward, seen).merge()->backward();
}

SightingPtr Engine::without(const SightingPtr& seen_by, const std::vector<SightingPtr>& known) {
  auto left = std::make_shared<Sighting>(*seen_by);
  for (const SightingPtr& other : known) {
    for (const Sighting::Seen& tool : other->tools) {
      std::erase_if(left->tools, [&](const Sighting::Seen& seen) {
        if (!(seen == tool)) return false;
        for (ToolBits* bits : {&left->seen.outer, &left->seen.nested, &left->seen.demanded}) *bits &= ~seen.bit;
        return true;
      });
    }
  }
  if (left->tools.size() == seen_by->tools.size()) return seen_by;
  return left->seen.nobody() ? nullptr : left;
}

bool Engine::is_over(const Sighting& seen_by) noexcept {
  return std::all_of(seen_by.tools.begin(), seen_by.tools.end(),
                     [](const Sighting::Seen& seen) { return seen.alive.expired(); });
}

BackwardRun::BackwardRun(ScopeStack& scopes, OpCall& call) : call_(call) {
  ThreadCalls& here = ThreadCalls::current();
  const Visibility seen = seen_by_tools(scopes, call, here);
  static_assert(sizeof(OpRun) <= sizeof room_);
  if (!seen.nobody()) run_ = new (room_) OpRun(here, scopes, call, seen);
}
BackwardRun::~BackwardRun() {
  if (run_) run_->~OpRun();
}

bool BackwardRun::seen() const { return run_ != nullptr; }
void BackwardRun::before() {
  if (run_) run_->before();
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

PlanPtr Engine::analyse(ScopeStack& scopes, OpSite& site, Point point) {
  ThreadCalls& here = ThreadCalls::current();
  CallFrame alive(here);
  const Visibility seen = seen_by_tools(scopes, site, here);
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

std::shared_ptr<ScopeStack> Engine::scopes_here() { return scopes_of_this_thread(); }

std::shared_ptr<ScopeStack> Engine::borrow(const std::weak_ptr<ScopeStack>& of_another_thread) {
  std::shared_ptr<ScopeStack> open = of_another_thread.lock();
  return open ? ScopeStackUse::begin(std::move(open), {}) : nullptr;
}

bool Engine::sees_nothing_inside(const ScopeStack& scopes) noexcept {
  const ToolBits inside = ThreadCalls::current().inside;
  return inside != 0 && !scopes.observes_inner(inside);
}

bool Engine::wants_all(const ScopeStack& scopes) noexcept { return scopes.tables().any_wants_all; }

std::vector<std::string> Engine::patterns(const ScopeStack& scopes) {
  std::vector<std::string> patterns;
  for (const ActiveTool& active : scopes.tables().tools) {
    for (const Registration& registration : *active.registrations) {
      const std::vector<std::string>& asked = registration.options.ops.patterns();
      patterns.insert(patterns.end(), asked.begin(), asked.end());
    }
  }
  return patterns;
}

// ---- reports --------------------------------------------------------------------------------------------------------

namespace {

template <class Fits>
bool any_active(const ScopeStack& scopes, const Engine::Tools& tools, const Fits& fits) {
  const std::vector<ActiveTool>& active = scopes.tables().tools;
  return std::any_of(active.begin(), active.end(), [&](const ActiveTool& one) {
    return std::find(tools.begin(), tools.end(), one.tool) != tools.end() && fits(one);
  });
}

}  // namespace

bool Engine::shows(const ScopeStack& scopes, const OpSite& site, const Tools& tools) {
  const ToolBits seeing = seen_by_tools(scopes, site, ThreadCalls::current()).any();
  return any_active(scopes, tools, [&](const ActiveTool& one) { return (one.bit & seeing) != 0; });
}

bool Engine::is_asked_for(const ScopeStack& scopes, const Backend& backend, OpType type, const Tools& tools) {
  const ToolBits asking = scopes.visibility(backend, type, 0).any();
  return any_active(scopes, tools, [&](const ActiveTool& one) { return (one.bit & asking) != 0; });
}

bool Engine::asks_for_backward(const ScopeStack& scopes, const Tools& tools) {
  return any_active(scopes, tools, [](const ActiveTool& one) {
    return std::any_of(one.registrations->begin(), one.registrations->end(),
                       [](const Registration& registration) { return registration.options.backward; });
  });
}

void Engine::call_original(OpCall& call) {
  ReplacementFrame* frame = ReplacementFrame::current();
  if (!frame || frame->call.type() != call.type() || frame->call.id() != call.id()) return call.run({});
  const uint64_t versions = frame->call.versions(Point::kReplace);
  frame->execution.run_wrapped(frame->plan, frame->index, call, {});
  frame->written += frame->call.versions(Point::kReplace) - versions;
  if (frame->index > 0) call.finish();
}

// ---- attached drivers -----------------------------------------------------------------------------------------------

namespace {
// Read without a lock, on every thread that enters a scope.
std::array<Backend*, kMaxBackends> backends;
std::atomic<size_t> num_backends{0};
Mutex attaching;
}  // namespace

std::span<Backend* const> attached_backends() {
  return {backends.data(), num_backends.load(std::memory_order_acquire)};
}

void Engine::attach(Backend& backend, int seam_version) {
  if (seam_version != kSeamVersion) {
    throw Error(
        fmt::format("[engine] the driver '{}' was built for seam version {}, this core has {}; rebuild the driver",
                    backend.name_space(), seam_version, kSeamVersion));
  }
  {
    std::lock_guard lock(attaching);
    const std::span<Backend* const> known = attached_backends();
    if (std::find(known.begin(), known.end(), &backend) != known.end()) return;
    if (known.size() == kMaxBackends) {
      throw Error(fmt::format("[engine] '{}' would be driver {}; at most {} can be attached", backend.name_space(),
                              kMaxBackends + 1, kMaxBackends));
    }
    backend.index_ = known.size();
    backends[known.size()] = &backend;
    num_backends.store(known.size() + 1, std::memory_order_release);
  }
  refresh_this_thread();
}

}  // namespace amanda
