// This file is compiled without contraction: as moving_range.cpp.
#include "quantization/fake_quantize.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/fake_quantize_per_channel_affine.h>
#include <ATen/ops/fake_quantize_per_tensor_affine.h>
#include <ATen/ops/mul.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "values/tensors.h"
#include "values/wide.h"

namespace amanda::tools::pytorch {
namespace {

// To the quotients below it, 1.5 * 2^23 is added, and they are whole numbers. Sums with zero points stay exact.
constexpr float kLargest = 1 << 21;
constexpr float kRounds = 3 << 22;
// Elements that are worth a thread.
constexpr int64_t kGrain = 1 << 15;

struct Grid {
  float scale, zero_point, low, high;
};

// Returns false if an element is NaN, or too large for this. As in elements.cpp, a compiler vectorizes the loop.
template <bool kMask>
[[gnu::always_inline]] inline bool round_run(const float* in, float* out, bool* mask, int64_t count, const Grid& grid) {
  const float inverse = 1.0F / grid.scale, scale = grid.scale, zero = grid.zero_point, low = grid.low, high = grid.high;
  int32_t outside = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = in[i] * inverse;
    outside |= std::abs(scaled) < kLargest ? 0 : -1;
    const float quantized = zero + ((scaled + kRounds) - kRounds);
    float clamped = quantized > low ? quantized : low;
    clamped = clamped < high ? clamped : high;
    out[i] = (clamped - zero) * scale;
    if constexpr (kMask) mask[i] = clamped == quantized;
  }
  return outside == 0;
}

bool round(const float* in, float* out, bool* mask, int64_t count, const Grid& grid) {
  return mask ? wide<round_run<true>>(in, out, mask, count, grid) : wide<round_run<false>>(in, out, mask, count, grid);
}

struct Rounded {
  at::Tensor value, mask;  // mask: where the gradient passes; undefined: there is none
};

// The rounded value. Empty if it cannot be made in one pass.
std::optional<Rounded> round_in_one_pass(const at::Tensor& value, const QuantizationParameters& parameters,
                                         const RangeOptions& options) {
  const auto channels = static_cast<int64_t>(parameters.scale.size());
  const bool fits = options.by_channel ? value.dim() > 0 && value.size(0) == channels && value.is_contiguous()
                                       : value.is_non_overlapping_and_dense();
  if (!fits || value.scalar_type() != at::kFloat || value.numel() == 0 || !is_readable(value) ||
      std::max(std::abs(options.quant_min), std::abs(options.quant_max)) > int64_t(kLargest) ||
      c10::impl::dispatch_mode_enabled() || value._fw_grad(/*level=*/0).defined()) {
    return std::nullopt;
  }
  Rounded rounded{at::empty_like(value), {}};
  if (value.requires_grad() && at::GradMode::is_enabled()) {
    rounded.mask = at::empty_like(value, value.options().dtype(at::kBool));
  }
  const float* in = value.const_data_ptr<float>();
  float* out = rounded.value.mutable_data_ptr<float>();
  bool* mask = rounded.mask.defined() ? rounded.mask.mutable_data_ptr<bool>() : nullptr;
  const auto round_part = [&](int64_t channel, int64_t begin, int64_t end) {
    const Grid grid{parameters.scale[channel], static_cast<float>(parameters.zero_point[channel]),
                    static_cast<float>(options.quant_min), static_cast<float>(options.quant_max)};
    return round(in + begin, out + begin, mask ? mask + begin : nullptr, end - begin, grid);
  };
  std::atomic<bool> all_inside{true};
  const int64_t each = value.numel() / channels;
  if (options.by_channel) {
    const int64_t grain = std::max<int64_t>(kGrain / each, 1);
    at::parallel_for(0, channels, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (!round_part(i, i * each, (i + 1) * each)) all_inside = false;
      }
    });
  } else {
    at::parallel_for(0, each, kGrain, [&](int64_t begin, int64_t end) {
      if (!round_part(0, begin, end)) all_inside = false;
    });
  }
  if (!all_inside) return std::nullopt;
  return rounded;
}

/// The straight-through estimator with clipping.
struct StraightThrough : torch::autograd::Function<StraightThrough> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& /*value*/,
                            const Rounded* rounded) {
    context->save_for_backward({rounded->mask});
    context->set_materialize_grads(false);
    return rounded->value;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    return {at::mul(gradients[0], context->get_saved_variables()[0]), at::Tensor()};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> tensors_of(const QuantizationParameters& parameters) {
  const c10::InferenceMode off(false);  // training may use them later
  const auto count = static_cast<int64_t>(parameters.scale.size());
  at::Tensor scale = at::empty({count}, at::kFloat), zero_point = at::empty({count}, at::kInt);
  std::copy_n(parameters.scale.data(), count, scale.mutable_data_ptr<float>());
  std::copy_n(parameters.zero_point.data(), count, zero_point.mutable_data_ptr<int32_t>());
  return {scale, zero_point};
}

at::Tensor fake_quantize(const at::Tensor& value, const QuantizationParameters& parameters,
                         const RangeOptions& options) {
  if (const auto rounded = round_in_one_pass(value, parameters, options)) {
    return rounded->mask.defined() ? StraightThrough::apply(value, &*rounded) : rounded->value;
  }
  const auto [scale, zero_point] = tensors_of(parameters);
  if (options.by_channel) {
    return at::fake_quantize_per_channel_affine(value, scale, zero_point, /*axis=*/0, options.quant_min,
                                                options.quant_max);
  }
  return at::fake_quantize_per_tensor_affine(value, scale, zero_point, options.quant_min, options.quant_max);
}

}  // namespace amanda::tools::pytorch
