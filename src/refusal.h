// The reasons why a driver cannot perform an action.
#pragma once

#include <string>

#include "amanda/driver/backend.h"

namespace amanda {

/// The reason why an action that replaces or edits is impossible on this operator. Empty if it is possible. An action
/// on all operands must be possible for one of them.
std::string refusal(OpSite& site, const ActionInfo& action);
/// The reason why the operator's inputs can't be shown to an action after it. Empty if they can, or if the action does
/// not ask for them.
std::string both_sides_refusal(const OpSite& site, const ActionInfo& action);

}  // namespace amanda
