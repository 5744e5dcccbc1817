// This file is compiled without contraction: a fused multiplication and addition rounds once, and PyTorch's operators
// round twice.
#include "quantization/moving_range.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <tuple>
#include <utility>

#include "values/tensors.h"

namespace amanda::tools::pytorch {

namespace {

struct Extremes {
  float low, high;
  bool is_finite;
};

// In lanes, so that a compiler vectorizes it. An element that is not finite makes a sum of zeros NaN.
Extremes extremes_of(const float* elements, int64_t count) {
  constexpr int kLanes = 8;
  std::array<float, kLanes> lows, highs, zeros{};
  lows.fill(elements[0]);
  highs.fill(elements[0]);
  const auto look = [&](int lane, float element) {
    lows[lane] = element < lows[lane] ? element : lows[lane];
    highs[lane] = element > highs[lane] ? element : highs[lane];
    zeros[lane] += element * 0.0F;
  };
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) look(lane, elements[i + lane]);
  }
  for (int64_t i = whole; i < count; ++i) look(0, elements[i]);
  const bool is_finite = std::all_of(zeros.begin(), zeros.end(), [](float zero) { return zero == 0; });
  return {*std::min_element(lows.begin(), lows.end()), *std::max_element(highs.begin(), highs.end()), is_finite};
}

}  // namespace

MovingRange::MovingRange(at::Tensor min, at::Tensor max, RangeOptions options)
    : min_(std::move(min)), max_(std::move(max)), channels_(min_.numel()), options_(options) {
  const float *lows = min_.const_data_ptr<float>(), *highs = max_.const_data_ptr<float>();
  for (int64_t i = 0; i < channels_; ++i) {
    if (!std::isfinite(highs[i] - lows[i]) || lows[i] > highs[i]) return;  // the observer says what that means
  }
  parameters_ = parameters_of_range();
}

QuantizationParametersPtr MovingRange::look_at(const at::Tensor& value) {
  if (!is_readable(value) || !value.is_floating_point() || value.numel() == 0) return nullptr;
  if (options_.by_channel && (value.dim() < 2 || value.size(0) != channels_)) return nullptr;
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  const at::Tensor value_here = value.to(at::kFloat).contiguous();
  const auto* elements = value_here.const_data_ptr<float>();
  const int64_t each = value_here.numel() / channels_;
  c10::SmallVector<std::pair<float, float>, 8> averages;
  const auto share = static_cast<float>(options_.averaging_constant);
  std::lock_guard lock(mutex_);
  if (retired_) return nullptr;
  float *lows = min_.mutable_data_ptr<float>(), *highs = max_.mutable_data_ptr<float>();
  for (int64_t i = 0; i < channels_; ++i) {
    const Extremes seen = extremes_of(elements + i * each, each);
    // Differences too; and a range that was not begun is infinite.
    const float change = std::max(std::abs(seen.low - lows[i]), std::abs(seen.high - highs[i]));
    if (!seen.is_finite || !std::isfinite(seen.high - seen.low) || !std::isfinite(highs[i] - lows[i]) ||
        !std::isfinite(change)) {
      return nullptr;
    }
    averages.emplace_back(lows[i] + share * (seen.low - lows[i]), highs[i] + share * (seen.high - highs[i]));
    if (averages[i].first > averages[i].second) return nullptr;  // by rounding; the observer refuses it
  }
  for (int64_t i = 0; i < channels_; ++i) std::tie(lows[i], highs[i]) = averages[i];
  return parameters_ = parameters_of_range();
}

QuantizationParametersPtr MovingRange::parameters_of_range() const {
  const float *lows = min_.const_data_ptr<float>(), *highs = max_.const_data_ptr<float>();
  const int64_t quant_min = options_.quant_min, quant_max = options_.quant_max;
  const auto steps = static_cast<double>(quant_max - quant_min);
  const int64_t middle = quant_min < 0 ? 0 : (quant_min + quant_max) / 2;
  const auto eps = static_cast<float>(options_.eps);
  auto found = std::make_shared<QuantizationParameters>();
  found->scale.reserve(channels_);
  found->zero_point.reserve(channels_);
  for (int64_t i = 0; i < channels_; ++i) {
    const float low = std::min(lows[i], 0.0F), high = std::max(highs[i], 0.0F);
    float scale = 0;
    int64_t zero = middle;
    if (options_.symmetric) {
      scale = std::max(std::max(-low, high) / static_cast<float>(steps / 2), eps);
    } else {
      scale = std::max((high - low) / static_cast<float>(steps), eps);
      zero = std::clamp(quant_min - static_cast<int64_t>(std::nearbyint(low / scale)), quant_min, quant_max);
    }
    found->scale.push_back(scale);
    found->zero_point.push_back(static_cast<int32_t>(zero));
  }
  return found;
}

QuantizationParametersPtr MovingRange::parameters() const {
  std::lock_guard lock(mutex_);
  return retired_ ? nullptr : parameters_;
}

void MovingRange::retire() {
  std::lock_guard lock(mutex_);
  retired_ = true;
}

}  // namespace amanda::tools::pytorch
