// Operands described in no framework's terms.
#pragma once

#include <ATen/core/ivalue.h>

#include "amanda/value.h"

namespace amanda::pytorch {

ValueInfo info_of(const c10::IValue& operand);

}  // namespace amanda::pytorch
