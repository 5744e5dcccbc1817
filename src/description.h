// Descriptions of scheduled actions.
#pragma once

#include "amanda/description.h"
#include "scheduled_action.h"

namespace amanda {

ActionDescription describe(const ScheduledAction& action);
/// In the order given.
std::vector<ActionDescription> describe(const std::vector<ScheduledPtr>& actions);

}  // namespace amanda
