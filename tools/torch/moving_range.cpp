// This file is compiled without contraction: a fused multiplication and addition rounds once, and PyTorch's operators
// round twice.
#include "torch/moving_range.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

#include "torch/bindings.h"
#include "torch/tensors.h"

namespace amanda::tools::pytorch {

namespace {

struct Extremes {
  float low, high;
  bool is_finite;
};

// In lanes, so that a compiler vectorizes it. What is not finite makes a sum of zeros NaN.
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
    : min_(std::move(min)), max_(std::move(max)), options_(options) {}

std::optional<std::pair<at::Tensor, at::Tensor>> MovingRange::look_at(const at::Tensor& value) {
  if (!is_readable(value) || !value.is_floating_point() || value.numel() == 0) return std::nullopt;
  const int64_t count = min_.numel();
  if (options_.by_channel && (value.dim() < 2 || value.size(0) != count)) return std::nullopt;
  const c10::InferenceMode off(false);  // training may use the scale later
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  const at::Tensor value_here = value.to(at::kFloat).contiguous();
  const auto* elements = value_here.const_data_ptr<float>();
  const int64_t each = value_here.numel() / count;
  c10::SmallVector<std::pair<float, float>, 8> averages;
  const auto share = static_cast<float>(options_.averaging_constant), eps = static_cast<float>(options_.eps);
  float *lows = min_.mutable_data_ptr<float>(), *highs = max_.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) {
    const Extremes seen = extremes_of(elements + i * each, each);
    // Differences too; and a range that was not begun is infinite.
    const float change = std::max(std::abs(seen.low - lows[i]), std::abs(seen.high - highs[i]));
    if (!seen.is_finite || !std::isfinite(seen.high - seen.low) || !std::isfinite(highs[i] - lows[i]) ||
        !std::isfinite(change)) {
      return std::nullopt;
    }
    averages.emplace_back(lows[i] + share * (seen.low - lows[i]), highs[i] + share * (seen.high - highs[i]));
    if (averages[i].first > averages[i].second) return std::nullopt;  // by rounding; the observer refuses it
  }
  const at::Tensor scale = at::empty({count}, at::kFloat), zero_point = at::empty({count}, at::kInt);
  const int64_t quant_min = options_.quant_min, quant_max = options_.quant_max;
  const auto steps = static_cast<double>(quant_max - quant_min);
  const int64_t middle = quant_min < 0 ? 0 : (quant_min + quant_max) / 2;
  for (int64_t i = 0; i < count; ++i) {
    std::tie(lows[i], highs[i]) = averages[i];
    const float low = std::min(lows[i], 0.0F), high = std::max(highs[i], 0.0F);
    float& found = scale.mutable_data_ptr<float>()[i];
    int64_t zero = middle;
    if (options_.symmetric) {
      found = std::max(std::max(-low, high) / static_cast<float>(steps / 2), eps);
    } else {
      found = std::max((high - low) / static_cast<float>(steps), eps);
      zero = std::clamp(quant_min - static_cast<int64_t>(std::nearbyint(low / found)), quant_min, quant_max);
    }
    zero_point.mutable_data_ptr<int32_t>()[i] = static_cast<int32_t>(zero);
  }
  return std::pair(scale, zero_point);
}

void bind_moving_range(pybind11::module_& m) {
  namespace py = pybind11;
  py::class_<MovingRange>(m, "MovingRange", "Continues, in its buffers, what an observer has begun.")
      .def(py::init([](at::Tensor min, at::Tensor max, double averaging_constant, int64_t quant_min, int64_t quant_max,
                       bool symmetric, bool by_channel, double eps) {
             return MovingRange(std::move(min), std::move(max),
                                {averaging_constant, quant_min, quant_max, symmetric, by_channel, eps});
           }),
           py::arg("min"), py::arg("max"), py::arg("averaging_constant"), py::arg("quant_min"), py::arg("quant_max"),
           py::arg("symmetric"), py::arg("by_channel"), py::arg("eps"))
      .def("look_at", &MovingRange::look_at, py::arg("value"), py::call_guard<py::gil_scoped_release>(),
           "Scale and zero point, with this value in the range; None: the observer itself must look at it.");
}

}  // namespace amanda::tools::pytorch
