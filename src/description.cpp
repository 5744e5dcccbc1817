#include "description.h"

namespace amanda {

ActionDescription describe(const ScheduledAction& action) {
  const OpPlace& place = *action.place;
  ActionDescription described{action.place, action.status->tool, action.routine->name(), action.phase, action.point,
                              {},           action.removed};
  if (action.all_positions) return described;
  const bool named = action.phase == Phase::kForward;
  const auto& names = side_of(action.point) == Side::kOutputs ? place.op->outputs : place.op->inputs;
  described.operands.emplace();
  for (size_t position : action.positions) {
    if (named && position < names.size() && !names[position].empty()) {
      described.operands->emplace_back(names[position]);
    } else {
      described.operands->emplace_back(static_cast<int64_t>(position));
    }
  }
  return described;
}

std::vector<ActionDescription> describe(const std::vector<ScheduledPtr>& actions) {
  std::vector<ActionDescription> described;
  described.reserve(actions.size());
  for (const ScheduledPtr& action : actions) described.push_back(describe(*action));
  return described;
}

}  // namespace amanda
