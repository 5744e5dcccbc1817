// Who computed an operator's results.
#pragma once

#include "amanda/action.h"

namespace amanda {

/// In a routine after an operator: are the results what the operator itself computed, from what Values::input() shows?
/// False: a replacement returned them, which may have run the operator itself, or a routine that ran before this one
/// has edited some.
bool has_own_results(const Values& values);

}  // namespace amanda
