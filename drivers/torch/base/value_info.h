// Describes operands independently of the framework.
#pragma once

#include <ATen/core/ivalue.h>

#include "amanda/value.h"

namespace amanda::pytorch {

ValueInfo info_of(const c10::IValue& operand);

}  // namespace amanda::pytorch
