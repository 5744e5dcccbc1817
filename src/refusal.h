// Whether a driver can give an action its effect.
#pragma once

#include <string>

#include "amanda/backend.h"

namespace amanda {

/// Why an action that replaces or edits can't have its effect on this operator; empty: it can. Of an action on all
/// operands: it must be possible for one of them.
std::string refusal(OpSite& site, const ActionInfo& action);
/// Why an action after the operator can't be shown its inputs; empty: it can, or does not ask.
std::string both_sides_refusal(const OpSite& site, const ActionInfo& action);

}  // namespace amanda
