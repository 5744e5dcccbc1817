// The range of an operand that FakeQuantization follows, and its scale and zero point: what an observer of
// torch.ao.quantization computes by some forty operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace amanda::tools::pytorch {

/// How a range becomes a scale and a zero point.
struct RangeOptions {
  double averaging_constant;  ///< the weight of the newest run in the average
  int64_t quant_min, quant_max;
  bool symmetric, by_channel;  ///< channels are the first dimension
  double eps;                  ///< the smallest scale
};

/// Continues what a MovingAverageMinMaxObserver or MovingAveragePerChannelMinMaxObserver has begun, in its buffers.
class MovingRange {
 public:
  /// `min` and `max`: float32, on the host; one element, or one per channel.
  MovingRange(at::Tensor min, at::Tensor max, RangeOptions options);

  /// Includes the value in the range. Returns scale and zero point, bit-equal to the observer's; none: it has done
  /// nothing, because the observer itself must see this value.
  std::optional<std::pair<at::Tensor, at::Tensor>> look_at(const at::Tensor& value);

 private:
  const at::Tensor min_, max_;
  const RangeOptions options_;
};

}  // namespace amanda::tools::pytorch
