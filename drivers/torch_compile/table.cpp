#include "table.h"

#include "amanda/graph.h"

namespace amanda::pytorch {

// A graph may run backward more than once, each time as another execution.
RunStatePtr Run::state(Phase phase, bool begins) {
  if (phase == Phase::kForward) return forward_;
  if (begins || !backward_) backward_ = std::make_shared<RunState>(forward_);
  return backward_;
}

}  // namespace amanda::pytorch
