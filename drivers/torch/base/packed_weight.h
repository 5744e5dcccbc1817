// Weights that PyTorch's quantized convolutions take in a form of their library.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>

#include "amanda/value.h"

namespace amanda::pytorch {

/// The sizes of the weight that was packed: (outputs, inputs of a group, ...); of a transposed convolution (inputs,
/// outputs of a group, ...). Empty if it is no packed weight of a convolution, or cannot be unpacked.
std::optional<IntVector> sizes_of_packed(const c10::IValue& operand);

}  // namespace amanda::pytorch
