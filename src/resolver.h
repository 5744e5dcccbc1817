// The order in which tools run.
#pragma once

#include <vector>

#include "amanda/tool.h"

namespace amanda {

/// `tools` and all their dependencies, each once, dependencies first, otherwise in the given order. Throws `Error` that
/// prints the cycle, if there is one.
std::vector<Tool*> resolve(const std::vector<Tool*>& tools);

/// True if `tool` depends on `other`, directly or through other tools.
bool depends(const Tool& tool, const Tool& other);

}  // namespace amanda
