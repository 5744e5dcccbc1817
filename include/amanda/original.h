// Who computed an operator's results.
#pragma once

#include "amanda/action.h"

namespace amanda {

/// In a routine after an operator: did the operator itself compute the results, on what Values::input() shows? False: a
/// tool's replacement did, perhaps with the operator's help.
bool ran_original(const Values& values);

}  // namespace amanda
