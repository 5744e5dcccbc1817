#include "table.h"

#include "amanda/driver/graph.h"
#include "base/port.h"

namespace amanda::pytorch {

// A graph may run backward more than once, each time as another execution. The operators that are recomputed there
// belong to that other execution, too.
RunStatePtr Run::state(const python::GraphOperator& op, Phase phase, bool begins) {
  const std::lock_guard lock(mutex_);
  States& states = of(op);
  if (phase == Phase::kForward) {
    RunStatePtr& state = port::inside_backward() ? states.recomputed : states.forward;
    if (!state || (begins && &state == &states.recomputed)) state = std::make_shared<RunState>();
    return state;
  }
  if (!states.forward) states.forward = states.recomputed ? states.recomputed : std::make_shared<RunState>();
  if (begins || !states.backward) states.backward = std::make_shared<RunState>(states.forward);
  return states.backward;
}

Run::States& Run::of(const python::GraphOperator& op) {
  for (States& one : states_) {
    if (one.op == &op) return one;
  }
  return states_.emplace_back(States{&op, nullptr, nullptr, nullptr});
}

}  // namespace amanda::pytorch
