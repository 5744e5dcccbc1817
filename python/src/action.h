// The names of scheduled actions in messages and reports.
#pragma once

#include <string>

#include "module.h"

namespace amanda::python {

/// "before", "after", "in place of".
const char* position_text(Point point);
/// "prune: mask before with inputs=['weight']".
std::string short_text(const ActionDescription& action);

}  // namespace amanda::python
