#include "values/elements.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "values/blocks.h"
#include "values/wide.h"

namespace amanda::tools::pytorch {
namespace {

// The loops below are written in lanes, so that a compiler vectorizes them without reordering sums by itself.
constexpr int kLanes = 8;

template <class T>
double sum(const std::array<T, kLanes>& lanes) {
  return ((double(lanes[0]) + lanes[4]) + (double(lanes[1]) + lanes[5])) +
         ((double(lanes[2]) + lanes[6]) + (double(lanes[3]) + lanes[7]));
}

// The summary of elements that may not all be finite.
template <class T>
Summary summary_one_by_one(const T* elements, int64_t count) {
  Summary summary;
  for (int64_t i = 0; i < count; ++i) {
    const double value = elements[i];
    summary.zeros += value == 0;
    summary.nans += std::isnan(value);
    summary.infs += std::isinf(value);
    if (!std::isfinite(value)) continue;
    ++summary.finite;
    summary.min = std::min(summary.min, value);
    summary.max = std::max(summary.max, value);
    const double step = value - summary.mean;  // Welford's algorithm
    summary.mean += step / static_cast<double>(summary.finite);
    summary.squares += step * (value - summary.mean);
  }
  return summary;
}

// Twice over a block that is in the cache: the squares are those of differences from its mean.
template <class T>
[[gnu::always_inline]] inline Summary summary_in_lanes(const T* elements, int64_t count) {
  std::array<double, kLanes> sums{}, squares{};
  std::array<T, kLanes> smallest, largest;
  std::array<int32_t, kLanes> zeros{};
  smallest.fill(elements[0]);
  largest.fill(elements[0]);
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) sums[j] += static_cast<double>(elements[i + j]);
    for (int j = 0; j < kLanes; ++j) zeros[j] += elements[i + j] == T(0);
    for (int j = 0; j < kLanes; ++j) smallest[j] = elements[i + j] < smallest[j] ? elements[i + j] : smallest[j];
    for (int j = 0; j < kLanes; ++j) largest[j] = elements[i + j] > largest[j] ? elements[i + j] : largest[j];
  }
  for (int64_t i = whole; i < count; ++i) {
    sums[0] += static_cast<double>(elements[i]);
    zeros[0] += elements[i] == T(0);
    smallest[0] = std::min(smallest[0], elements[i]);
    largest[0] = std::max(largest[0], elements[i]);
  }
  const double total = sum(sums);
  if (!std::isfinite(total)) return summary_one_by_one(elements, count);
  Summary summary{.finite = count, .mean = total / static_cast<double>(count)};
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const double step = static_cast<double>(elements[i + j]) - summary.mean;
      squares[j] += step * step;
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    const double step = static_cast<double>(elements[i]) - summary.mean;
    squares[0] += step * step;
  }
  summary.squares = sum(squares);
  for (int j = 0; j < kLanes; ++j) summary.zeros += zeros[j];
  summary.min = *std::min_element(smallest.begin(), smallest.end());
  summary.max = *std::max_element(largest.begin(), largest.end());
  return summary;
}

template <class T>
[[gnu::always_inline]] inline double squares_in_lanes(const T* elements, int64_t count) {
  std::array<double, kLanes> squares{};
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      squares[j] += static_cast<double>(elements[i + j]) * static_cast<double>(elements[i + j]);
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    squares[0] += static_cast<double>(elements[i]) * static_cast<double>(elements[i]);
  }
  return sum(squares);
}

// Calls `fn` with blocks of float, of types that have no arithmetic of their own.
template <class T, class Fn>
void each_block_as_float(const at::Tensor& tensor, const Fn& fn) {
  each_block<T>(tensor, [&](const T* elements, int64_t count) {
    std::array<float, kBlock> converted;
    for (int64_t i = 0; i < count; ++i) converted[i] = static_cast<float>(elements[i]);
    fn(converted.data(), count);
  });
}

/// Calls `fn(const float* or const double*, count)` on all elements. Returns false if they are no floating-point
/// numbers.
template <class Fn>
bool each_floating_block(const at::Tensor& tensor, const Fn& fn) {
  switch (tensor.scalar_type()) {
    case at::kFloat: each_block<float>(tensor, fn); return true;
    case at::kDouble: each_block<double>(tensor, fn); return true;
    case at::kHalf: each_block_as_float<c10::Half>(tensor, fn); return true;
    case at::kBFloat16: each_block_as_float<c10::BFloat16>(tensor, fn); return true;
    default: return false;
  }
}

template <class T>
int64_t count_zeros(const at::Tensor& tensor) {
  int64_t zeros = 0;
  each_block<T>(tensor,
                [&](const T* elements, int64_t count) { zeros += std::count(elements, elements + count, T(0)); });
  return zeros;
}

std::optional<int64_t> zeros_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBool:
    case at::kChar:
    case at::kByte: return count_zeros<uint8_t>(tensor);
    case at::kShort:
    case at::kUInt16: return count_zeros<uint16_t>(tensor);
    case at::kInt:
    case at::kUInt32: return count_zeros<uint32_t>(tensor);
    case at::kLong:
    case at::kUInt64: return count_zeros<uint64_t>(tensor);
    case at::kComplexFloat: return count_zeros<c10::complex<float>>(tensor);
    case at::kComplexDouble: return count_zeros<c10::complex<double>>(tensor);
    default: return std::nullopt;
  }
}

// Complex numbers are read as pairs of real numbers: the order in a block does not matter.
template <class T>
double complex_squares(const at::Tensor& tensor) {
  double squares = 0;
  each_block<c10::complex<T>>(tensor, [&](const c10::complex<T>* elements, int64_t count) {
    squares += wide<squares_in_lanes<T>>(reinterpret_cast<const T*>(elements), 2 * count);
  });
  return squares;
}

template <class T>
double integer_squares(const at::Tensor& tensor) {
  double squares = 0;
  each_block<T>(tensor, [&](const T* elements, int64_t count) {
    for (int64_t i = 0; i < count; ++i) squares += static_cast<double>(elements[i]) * static_cast<double>(elements[i]);
  });
  return squares;
}

std::optional<double> squares_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kComplexFloat: return complex_squares<float>(tensor);
    case at::kComplexDouble: return complex_squares<double>(tensor);
    case at::kLong: return integer_squares<int64_t>(tensor);
    case at::kInt: return integer_squares<int32_t>(tensor);
    default: break;
  }
  double squares = 0;
  const auto add = [&]<class T>(const T* elements, int64_t count) {
    squares += wide<squares_in_lanes<T>>(elements, count);
  };
  return each_floating_block(tensor, add) ? std::optional(squares) : std::nullopt;
}

}  // namespace

void Summary::merge(const Summary& other) {
  elements += other.elements;
  zeros += other.zeros;
  nans += other.nans;
  infs += other.infs;
  if (other.finite == 0) return;
  if (finite == 0) {
    finite = other.finite;
    min = other.min;
    max = other.max;
    mean = other.mean;
    squares = other.squares;
    return;
  }
  const double total = static_cast<double>(finite + other.finite), share = static_cast<double>(other.finite) / total;
  const double step = other.mean - mean;
  mean += step * share;
  squares += other.squares + step * step * static_cast<double>(finite) * share;
  finite += other.finite;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
}

std::optional<Summary> summary_of(const at::Tensor& tensor) {
  Summary summary;
  const bool is_floating = each_floating_block(tensor, [&]<class T>(const T* elements, int64_t count) {
    summary.merge(wide<summary_in_lanes<T>>(elements, count));
  });
  summary.elements = tensor.numel();
  if (is_floating) return summary;
  const std::optional<int64_t> zeros = zeros_of(tensor);
  if (!zeros) return std::nullopt;
  summary.zeros = *zeros;
  return summary;
}

std::optional<double> norm_of(const at::Tensor& tensor) {
  const std::optional<double> squares = squares_of(tensor);
  return squares ? std::optional(std::sqrt(*squares)) : std::nullopt;
}

}  // namespace amanda::tools::pytorch
