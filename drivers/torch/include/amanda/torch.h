// Tensors for C++ tools: what a Value of the PyTorch driver is. Include after, or instead of, <torch/torch.h>.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "amanda/amanda.h"

namespace amanda::pytorch {

/// The operand itself: a tensor, a list, a number, None ... Null Values (no longer alive) throw `Error`.
const c10::IValue& ivalue(Value value);

/// The operand as a tensor; undefined where it is None. Throws `Error` if it is something else.
at::Tensor tensor(Value value);

/// Is the operand a defined tensor?
bool is_tensor(Value value);

/// Puts a tensor (or any other value of the right type) in place of the i-th selected operand. See Values::set.
void set(Values& values, size_t i, const c10::IValue& value);

/// A replacement's i-th result. See Values::set_result.
void set_result(Values& values, size_t i, const c10::IValue& value);

/// The driver. Linking to it attaches it; it serves all of the process.
Backend& backend();

}  // namespace amanda::pytorch
