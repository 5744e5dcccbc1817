// The objects that routines share in one execution of an operator, and in its backward operators.
#pragma once

#include <cstdint>
#include <memory>

#include "amanda/run_state.h"
#include "tap_node.h"

namespace amanda::tensorflow {

/// The execution to which a node's run belongs: a run of a graph, a loop in it, and an iteration of the loop.
struct Execution {
  int64_t step;
  uint64_t frame;
  int64_t iteration;
};

/// An instrumented run begins or ends on this thread. Nodes that run meanwhile, on any thread, find their states.
void begin_run();
void end_run();

/// One object for all taps of an operator in one execution. Null if no run is in progress. The k-th execution of a
/// backward operator belongs to the k-th last of its forward operator, as gradients of a loop run from its end.
RunStatePtr run_state(const std::shared_ptr<const python::GraphOperator>& op, const Execution& execution);

}  // namespace amanda::tensorflow
