// Values rounded as `torch.fake_quantize_per_tensor_affine` and `torch.fake_quantize_per_channel_affine` do it.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "quantization/moving_range.h"

namespace amanda::tools::pytorch {

/// Scale (float32) and zero point (int32) as PyTorch's operators take them, one-dimensional.
std::pair<at::Tensor, at::Tensor> tensors_of(const QuantizationParameters& parameters);

/// The value after quantization, bit-equal to PyTorch's operator with its gradient. In one pass, where the value is a
/// dense float32 tensor on the host, in range of what this pass can round; elsewhere it calls the operator.
at::Tensor fake_quantize(const at::Tensor& value, const QuantizationParameters& parameters,
                         const RangeOptions& options);

}  // namespace amanda::tools::pytorch
