// Identity: an operator is a name at a place.
#pragma once

#include <string_view>

#include "amanda/driver/backend.h"

namespace amanda::reference {

/// The place `label` inside `place`, or the operator of that name there; 0 inside 0, which is nowhere.
OpId extended(OpId place, std::string_view label);

}  // namespace amanda::reference
