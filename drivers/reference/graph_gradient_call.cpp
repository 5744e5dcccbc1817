#include "graph_gradient_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "place_hash.h"
#include "thread_state.h"

namespace amanda::reference {

// The same as on the tape: the first node that the operator creates, and the number of gradients that it computes.
OpId GraphGradientCall::id() {
  return extended(forward_id(), fmt::format("{}.0/{}", operator_of(type()).info.name, size(Side::kOutputs)));
}

void GraphGradientCall::run(RunHints) {
  if (this_thread.listener) this_thread.listener(operator_of(type()).info);
  const bool any = std::any_of(grad_outputs_.begin(), grad_outputs_.end(),
                               [](const auto& gradient) { return gradient.has_value(); });
  grad_inputs_ = any ? forward_.op.differentiate(forward_.inputs, forward_.outputs)(grad_outputs_)
                     : Gradients(size(Side::kOutputs));
  if (grad_inputs_.size() != size(Side::kOutputs)) {
    throw std::invalid_argument(
        fmt::format("[graph] no gradient flows through '{}': its inputs are not all arrays", forward_.location.path));
  }
}

}  // namespace amanda::reference
