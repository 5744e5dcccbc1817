#include "tap.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>

#include "amanda/base/leaked.h"
#include "amanda/base/thread_calls.h"
#include "amanda/base/weak_table.h"
#include "amanda/driver/engine.h"
#include "amanda/error.h"
#include "executor.h"
#include "op_name.h"
#include "scope_stack.h"

namespace amanda {
namespace {

RoutineKind kind_of(const ActionInfo& action) { return action.only_looks() ? RoutineKind::kObserve : action.kind; }

/// A graph may be stored with its ids and loaded by another process; those are never ids of this one. Positive as an
/// int64_t, the type that operators of frameworks take.
uint64_t next_tap_id() {
  static std::atomic<uint64_t> next{(static_cast<uint64_t>(std::random_device()() & 0x7FFFFFFF) << 32) + 1};
  return next++;
}

struct ActionsTap final : Tap {
  ActionsTap(std::vector<ScheduledPtr> actions, OpSite& site) : Tap(next_tap_id(), site.phase(), *actions[0]) {
    kind_ = kind_of(*actions[0]);
    differentiable_ = actions[0]->mode == RoutineMode::kAmbient;
    all_ = point_ == Point::kReplace;
    for (const ScheduledPtr& action : actions) {
      if (kind_of(*action) != kind_) kind_ = RoutineKind::kTransform;  // two replacements of different kinds
      all_ |= action->all_positions;
      shares_run_ |= action->with_run;
      shows_all_ |= action->shows_all;
      shows_.insert(shows_.end(), action->shows.begin(), action->shows.end());
      positions_.insert(positions_.end(), action->positions.begin(), action->positions.end());
      for (size_t position : action->positions) least_size = std::max(least_size, position + 1);
      if (scopes.empty() || scopes.back().lock().get() != action->scope)
        scopes.push_back(action->scope->weak_from_this());
    }
    plan = std::make_shared<const Plan>(std::move(actions), Plan::Outlook{}, site);
    if (point_ == Point::kReplace) return;  // a driver may pass some operands as constants
    const Side side = side_of(point_);
    if (all_) least_size = site.size(side);
    if (phase_ == Phase::kBackward) return;  // a gradient may be undefined in one run and defined in another
    for (size_t position = 0; position < least_size; ++position) {
      if (selects(position) && site.get(side, position).ref) shown.push_back({side, position});
    }
    for (size_t position = 0; position < site.size(Side::kInputs); ++position) {
      if (shows_input(position) && site.get(Side::kInputs, position).ref) shown.push_back({Side::kInputs, position});
    }
  }

  PlanPtr plan;                                   // of these actions alone
  std::vector<std::weak_ptr<ScopeState>> scopes;  // of the actions
  size_t least_size = 0;                          // of the operands
  std::vector<std::pair<Side, size_t>> shown;     // operands that existed when the operator was analyzed
};

using KnownTaps = WeakTable<const Tap>;

/// Keeps the objects alive that a tap's actions point to, while they run. One scope, the common case, needs no
/// allocation.
class LiveScopes final : public RunningScopes {
 public:
  LiveScopes(const ActionsTap& tap, const ScopeStack* open) {
    for (const auto& weak : tap.scopes) {
      std::shared_ptr<ScopeState> scope = weak.lock();
      if (!scope || (open && !is_in(*open, scope.get()))) continue;
      if (first_) {
        rest_.push_back(std::move(scope));
      } else {
        first_ = std::move(scope);
      }
    }
  }

  bool contains(const ScopeState* scope) const override {
    return first_.get() == scope ||
           std::any_of(rest_.begin(), rest_.end(), [&](const auto& other) { return other.get() == scope; });
  }

 private:
  static bool is_in(const ScopeStack& open, const ScopeState* scope) {
    return std::find(open.scopes().begin(), open.scopes().end(), scope) != open.scopes().end();
  }

  std::shared_ptr<ScopeState> first_;
  std::vector<std::shared_ptr<ScopeState>> rest_;
};

const char* name_of(Phase phase) { return phase == Phase::kForward ? "forward" : "backward"; }

void check(const ActionsTap& tap, OpCall& call) {
  const auto driver = [&] { return call.backend().name_space(); };
  if (call.phase() != tap.phase()) {
    throw Error(fmt::format("[graph] the driver '{}' ran a tap of a {} operator in a {} one: {}", driver(),
                            name_of(tap.phase()), name_of(call.phase()), op_name(call)));
  }
  const Side side = side_of(tap.point());
  const char* operand = operand_name(call.phase(), side);
  if (call.size(side) < tap.least_size && tap.point() != Point::kReplace) {
    throw Error(fmt::format("[graph] the driver '{}' ran a tap of {} with {} {}s; the tap was made for {} or more",
                            driver(), op_name(call), call.size(side), operand, tap.least_size));
  }
  for (const auto& [shown_side, position] : tap.shown) {
    if (position < call.size(shown_side) && call.get(shown_side, position).ref) continue;
    throw Error(fmt::format("[graph] the driver '{}' ran a tap of {} without {} {}, which it showed to the analysis",
                            driver(), op_name(call), operand_name(call.phase(), shown_side), position));
  }
}

}  // namespace

std::vector<TapPtr> taps_of(const Plan& plan, OpSite& site) {
  std::vector<TapPtr> made;
  for (Point point : {Point::kBefore, Point::kReplace, Point::kAfter}) {
    const std::vector<ScheduledPtr>& actions = plan.at(point);
    for (auto begin = actions.begin(); begin != actions.end();) {
      const auto end = std::find_if(begin, actions.end(), [&](const ScheduledPtr& action) {
        return point != Point::kReplace && (kind_of(*action) != kind_of(**begin) || action->mode != (*begin)->mode);
      });
      made.push_back(std::make_shared<const ActionsTap>(std::vector<ScheduledPtr>(begin, end), site));
      begin = end;
    }
  }
  for (const TapPtr& tap : made) leaked<KnownTaps>().add(tap->id(), tap);
  return made;
}

bool Tap::selects(size_t position) const {
  return all_ || std::find(positions_.begin(), positions_.end(), position) != positions_.end();
}

bool Tap::shows_input(size_t position) const {
  return shows_all_ || std::find(shows_.begin(), shows_.end(), position) != shows_.end();
}

TapPtr Engine::tap(uint64_t id) {
  struct Known {
    uint64_t id = 0;
    std::weak_ptr<const Tap> tap;
  };
  thread_local std::array<Known, 64> front;  // ids are never reused
  Known& known = front[id % front.size()];
  if (known.id == id) {
    if (TapPtr tap = known.tap.lock()) return tap;
  }
  TapPtr tap = leaked<KnownTaps>().find(id);
  if (tap) known = {id, tap};
  return tap;
}

void Engine::run(const Tap& given, OpCall& call, const ScopeStack* open, RunState* state) {
  const auto& tap = static_cast<const ActionsTap&>(given);
  check(tap, call);
  CallFrame frame(ThreadCalls::current());
  const LiveScopes scopes(tap, open);
  Execution execution(call, &scopes, state);
  switch (tap.point()) {
    case Point::kBefore: return execution.run_before(*tap.plan);
    case Point::kReplace: return execution.run_operator(*tap.plan, false);
    case Point::kAfter: return execution.run_after(*tap.plan);
  }
}

}  // namespace amanda
