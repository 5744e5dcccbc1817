// Whether a driver can give an action its effect.
#pragma once

#include <string>

#include "amanda/backend.h"

namespace amanda {

/// Why an action that replaces or edits can't have its effect on this operator; empty: it can. Of an action on all
/// operands: it must be possible for one of them.
std::string refusal(OpSite& site, const ActionInfo& action);

}  // namespace amanda
