// The steps of one operator call. Read this file first.
//
// A call takes one of two ways:
// - on_op(): the first run of a place. Analyses run, and their actions become a plan. The second run finds that plan.
// - on_known_op(): each run from the third on, which is almost every call. The driver has kept the plan with the place
//   (sight() and known_call() say for how long), and on_known_op() runs it. If no tool sees the operator, or the plan
//   has no action, the driver does not call the core.
#include "amanda/driver/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "action_cache.h"
#include "amanda/base/mutex.h"
#include "amanda/base/thread_calls.h"
#include "amanda/error.h"
#include "backends.h"
#include "executor.h"
#include "op_run.h"
#include "scope_stack.h"
#include "scope_stack_use.h"

namespace amanda {

void Engine::on_op(ScopeStack& scopes, OpCall& call) {
  ThreadCalls& here = ThreadCalls::current();
  const Visibility seen = scopes.visibility(call, here.inside);
  if (seen.nobody()) return call.run({.observe_inner = scopes.observes_inner(here.inside)});
  OpRun run(here, scopes, call, seen);
  run.before();
  run.operate();
  run.after();
}

uint64_t Engine::serial(const ScopeStack& scopes) noexcept { return scopes.serial(); }

Sight Engine::sight(const ScopeStack& scopes, const Backend& backend, OpType type) {
  Sight sight;
  sight.generation_ = ActionCache::generation();  // read first: the values below may not include later changes
  sight.scopes_ = scopes.serial();
  sight.inside_ = ThreadCalls::current().inside;
  const Visibility seen = scopes.visibility(backend, type, sight.inside_);
  if (!seen.nobody()) sight.seeing_ = seen.any();
  sight.observes_inner_ = scopes.observes_inner(sight.inside_ | sight.seeing_);
  return sight;
}

KnownCall Engine::known_call(const ScopeStack& scopes, const Backend& backend, OpType type, OpId id) {
  KnownCall known;
  const uint64_t generation = ActionCache::generation();  // as above
  const ToolBits inside = ThreadCalls::current().inside;
  PlanUse plan = ActionCache::peek(scopes, id, scopes.visibility(backend, type, inside), generation);
  if (!plan || plan->after_pending()) return known;
  known.scopes_ = scopes.serial();
  known.generation_ = generation;
  known.inside_ = inside;
  if (!plan->does_nothing() || plan->backward()) known.plan_ = std::move(plan);
  return known;
}

namespace {

// Apart from on_known_op(): most calls need none of this code in the caches.
[[gnu::noinline]] Engine::Left run_with_backward(ThreadCalls& here, ScopeStack& scopes, OpCall& call, ToolBits seeing,
                                                 const PlanUse& plan) {
  OpRun run(here, scopes, call, seeing, plan);
  run.before();
  if (run.leaves_operator()) return {true, scopes.observes_inner(here.inside | seeing)};
  run.operate();
  run.after();
  return {};
}

[[gnu::noinline]] void run_rest(ThreadCalls& here, ToolBits seeing, const Plan& plan, Execution& execution,
                                bool observes_inner) {
  {
    const OpFrame frame(here, seeing);
    execution.run_operator(plan, observes_inner);
  }
  execution.run_last(plan);
}

}  // namespace

// Routines may run the same place again, or change the knowledge about it: nothing is read from `sight` and `known`
// after the first routine began.
[[gnu::hot]] Engine::Left Engine::on_known_op(ThreadCalls& here, ScopeStack& scopes, OpCall& call, const Sight& sight,
                                              const KnownCall& known) {
  if (known.plan_->backward()) return run_with_backward(here, scopes, call, sight.seeing(), known.plan_);
  // The same, for a plan without analyses and backward operators.
  const CallFrame alive(here);
  const PlanUse plan = known.plan_;
  const ToolBits seeing = sight.seeing();
  bool observes_inner = sight.observes_inner();
  const uint64_t generation = sight.generation_;
  Execution execution(call);
  scopes.count_hit(here);
  execution.run_before(*plan);
  if (generation != ActionCache::generation()) observes_inner = scopes.observes_inner(here.inside | seeing);
  if (plan->ends_before() && !execution.has_state()) return {true, observes_inner};
  run_rest(here, seeing, *plan, execution, observes_inner);
  return {};
}

[[gnu::hot]] void Engine::count_hit(const ThreadCalls& here, const ScopeStack& scopes) noexcept {
  scopes.count_hit(here);
}

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
  const ToolBits seeing = scopes.visibility(site, ThreadCalls::current().inside).any();
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
  const uint64_t versions = frame->call.unmutated_versions();
  frame->execution.run_wrapped(frame->plan, frame->index, call, {});
  frame->written += frame->call.unmutated_versions() - versions;
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

void Engine::attach(Backend& backend, int seam_version, const Backend* same_ids_as) {
  if (seam_version != kSeamVersion) {
    throw Error(
        fmt::format("[engine] the driver '{}' was built for seam version {}, this core has {}; rebuild the driver",
                    backend.name_space(), seam_version, kSeamVersion));
  }
  {
    std::lock_guard lock(attaching);
    const std::span<Backend* const> known = attached_backends();
    if (std::find(known.begin(), known.end(), &backend) != known.end()) return;
    if (same_ids_as && std::find(known.begin(), known.end(), same_ids_as) == known.end()) {
      throw Error(
          fmt::format("[engine] '{}' cannot use the operator ids of '{}', which is not attached; attach it first",
                      backend.name_space(), same_ids_as->name_space()));
    }
    if (known.size() == kMaxBackends) {
      throw Error(fmt::format("[engine] '{}' would be driver {}; at most {} can be attached", backend.name_space(),
                              kMaxBackends + 1, kMaxBackends));
    }
    backend.index_ = known.size();
    backend.ids_ = same_ids_as ? same_ids_as->ids_ : backend.index_;
    backends[known.size()] = &backend;
    num_backends.store(known.size() + 1, std::memory_order_release);
  }
  refresh_this_thread();
}

const Backend* Engine::find_backend(std::string_view name_space) noexcept {
  for (const Backend* backend : attached_backends()) {
    if (backend->name_space() == name_space) return backend;
  }
  return nullptr;
}

}  // namespace amanda
