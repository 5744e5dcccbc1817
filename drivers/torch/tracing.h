// Does the program run, or does somebody trace it with stand-in tensors (compilation, export)?
#pragma once

#include <ATen/core/ivalue.h>

namespace amanda::pytorch {

bool is_traced(c10::ArrayRef<c10::IValue> operands);

}  // namespace amanda::pytorch
