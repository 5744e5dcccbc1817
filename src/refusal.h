// Whether a driver can perform an action.
#pragma once

#include <string>

#include "amanda/backend.h"

namespace amanda {

/// Why an action that replaces or edits is impossible on this operator; empty: it is possible. An action on all
/// operands must be possible for one of them.
std::string refusal(OpSite& site, const ActionInfo& action);

}  // namespace amanda
