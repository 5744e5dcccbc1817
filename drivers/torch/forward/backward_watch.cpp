#include "forward/backward_watch.h"

#include <algorithm>

namespace amanda::pytorch {

void BackwardWatch::begin(const OpRecord& record, c10::ArrayRef<c10::IValue> arguments) {
  window_.emplace();
  const auto& returned = record.result_mutated;
  for (size_t i : record.mutated) {
    if (std::find(returned.begin(), returned.end(), i) == returned.end()) written_.push_back(arguments[i]);
  }
}

void BackwardWatch::keep_inputs(c10::ArrayRef<c10::IValue> inputs) {
  operands_ = std::make_shared<ForwardOperands>();
  operands_->keep_inputs(inputs);
}

std::shared_ptr<ForwardOperands> BackwardWatch::take_operands(c10::ArrayRef<c10::IValue> results) {
  if (operands_) operands_->keep_outputs(results);
  return std::move(operands_);
}

void BackwardWatch::defer(ScopeStack& scopes, const SubscriptionPtr& seen_by, RunSource& runs) {
  deferred_.emplace(scopes, seen_by, runs.run_state());
}

}  // namespace amanda::pytorch
