// The range of an operand that FakeQuantization follows, and its scale and zero point: what an observer of
// torch.ao.quantization computes by some forty operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "amanda/base/mutex.h"

namespace amanda::tools::pytorch {

/// Options by which a range becomes a scale and a zero point.
struct RangeOptions {
  double averaging_constant;  ///< the weight of the newest run in the average
  int64_t quant_min, quant_max;
  bool symmetric, by_channel;  ///< channels are the first dimension
  double eps;                  ///< the smallest scale
};

/// The parameters with which a value is quantized: one element each, or one per channel.
struct QuantizationParameters {
  std::vector<float> scale;
  std::vector<int32_t> zero_point;
};
using QuantizationParametersPtr = std::shared_ptr<const QuantizationParameters>;

/// Continues what a MovingAverageMinMaxObserver or MovingAveragePerChannelMinMaxObserver has begun, in its buffers. On
/// any thread.
class MovingRange {
 public:
  /// `min` and `max`: float32, on the host; one element, or one per channel.
  MovingRange(at::Tensor min, at::Tensor max, RangeOptions options);

  const RangeOptions& options() const { return options_; }

  /// Includes the value in the range. Returns the parameters with which it is quantized, bit-equal to the observer's.
  /// Null if it has done nothing, because the observer itself must see this value.
  QuantizationParametersPtr look_at(const at::Tensor& value);
  /// The parameters of the last run. Null if the observer must be asked.
  QuantizationParametersPtr parameters() const;
  /// From now on it does nothing: the observer goes on by itself.
  void retire();

 private:
  QuantizationParametersPtr parameters_of_range() const;

  const at::Tensor min_, max_;
  const int64_t channels_;
  const RangeOptions options_;
  mutable Mutex mutex_;  // guards the elements of min_ and max_, and the members below
  QuantizationParametersPtr parameters_;
  bool retired_ = false;
};

}  // namespace amanda::tools::pytorch
