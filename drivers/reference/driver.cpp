#include "driver.h"

#include <utility>

#include "amanda/driver/engine.h"
#include "amanda/reference/call.h"
#include "amanda/reference/operator.h"
#include "thread_state.h"

namespace amanda::reference {

thread_local ThreadState this_thread;

Driver::Driver(std::string_view name_space, Capabilities capabilities, const Backend* same_ids_as)
    : name_space_(name_space), capabilities_(capabilities) {
  Engine::attach(*this, kSeamVersion, same_ids_as);
}

Driver& Driver::eager() {
  static Driver driver(
      "reference/1/eager",
      {.backward = BackwardOps::kNodes, .can_replace = true, .can_change_shape = true, .both_sides = true});
  return driver;
}

Driver& Driver::graph() {
  static Driver driver("reference/1/graph",
                       {.backward = BackwardOps::kOne,
                        .symbolic_analysis = true,
                        .can_replace = true,
                        .can_change_shape = true,
                        .keeps_gradients = true,
                        .both_sides = true},
                       &eager());
  return driver;
}

// Attached when the program starts: scopes only notify attached drivers.
[[maybe_unused]] static const Driver* const attached[] = {&Driver::eager(), &Driver::graph()};

const OpInfo& Driver::info(OpType type) const { return operator_of(type).info; }

void Driver::switch_to(ScopeStack* scopes) {
  this_thread.scopes = scopes;
  this_thread.inside_hidden = false;  // a scope that was just entered is inside no operator
}

// The token is the previous mode, or 0 if there was none.
void* Driver::begin_routines(RoutineMode mode) {
  const std::optional<RoutineMode> before = std::exchange(this_thread.mode, mode);
  return reinterpret_cast<void*>(before ? static_cast<uintptr_t>(*before) + 1 : 0);
}

void Driver::end_routines(void* token) noexcept {
  const auto before = reinterpret_cast<uintptr_t>(token);
  this_thread.mode = before ? std::optional(static_cast<RoutineMode>(before - 1)) : std::nullopt;
}

std::string Driver::refusal(OpSite& site, const ActionInfo& action, size_t position) const {
  if (site.phase() == Phase::kBackward) {
    if (action.point != Point::kReplace || site.made_by_forward()) return {};
    return "it adds to the gradient of a leaf, and nothing else can take its place; edit what it adds, before it";
  }
  if (action.allow_view || !operator_of(site.type()).view) return {};
  if (action.point == Point::kBefore) {
    if (position != 0) return {};  // a result is only a view of the first input
    return "the result is a view of it, and another value would share no data; say allow_view if that will do";
  }
  return "its result is a view, and another value would share no data; say allow_view if that will do";
}

ValueInfo Driver::describe(Value value) const { return value.ref ? info_of(operand(value)) : ValueInfo(); }

std::optional<RoutineMode> routine_mode() { return this_thread.mode; }

}  // namespace amanda::reference
