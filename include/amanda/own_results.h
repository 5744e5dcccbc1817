// Who computed an operator's results.
#pragma once

#include "amanda/action.h"

namespace amanda {

/// In a routine after an operator: are the results what the operator itself computed, from what Values::input() shows?
/// False: a tool's replacement computed them, or a routine that ran before this one has edited some.
bool has_own_results(const Values& values);

}  // namespace amanda
