// An operand of an operator that runs compiled.
#pragma once

#include <ATen/core/ivalue.h>

#include "base/value_info.h"
#include "native_operand.h"

namespace amanda::pytorch {

struct CompiledOperand final : python::NativeOperand {
  ValueInfo describe() const override { return info_of(value); }

  Value handle() { return python::NativeOperand::value(); }

  c10::IValue value;
};

}  // namespace amanda::pytorch
