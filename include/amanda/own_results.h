// The origin of an operator's results: the operator itself, or a tool.
#pragma once

#include "amanda/action.h"

namespace amanda {

/// In a routine after an operator: true if the operator itself computed the results, from the inputs that
/// Values::input() shows. False if a replacement returned them, which may have run the operator itself, or if a routine
/// that ran before this one has edited some.
bool has_own_results(const Values& values);

}  // namespace amanda
