// Taps, which a graph's nodes run: consecutive actions of one operator.
#pragma once

#include <vector>

#include "amanda/driver/graph.h"
#include "plan.h"

namespace amanda {

/// The taps of an operator's plan, in the order they run.
std::vector<TapPtr> taps_of(const Plan& plan, OpSite& site);

}  // namespace amanda
