#include "nonfinite/finite.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "amanda/routine_capsule.h"
#include "torch_bindings.h"
#include "values/blocks.h"
#include "values/tensors.h"
#include "values/wide.h"

namespace amanda::tools::pytorch {
namespace {

constexpr uint32_t kFloatInfinity = 0x7f800000;
constexpr uint64_t kDoubleInfinity = 0x7ff0000000000000;

// As in elements.cpp, the loops are such that a compiler vectorizes them.
//
// The bits of a NaN without its sign are an integer above those of infinity.
template <class Bits>
[[gnu::always_inline]] inline bool above(const Bits* bits, int64_t count, Bits limit) {
  constexpr Bits kSign = static_cast<Bits>(Bits(1) << (8 * sizeof(Bits) - 1));
  Bits found = 0;
#pragma GCC unroll 4
  for (int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<Bits>(bits[i] & static_cast<Bits>(~kSign));
    // The difference wraps around, and its sign bit is set, where the magnitude is above.
    found = static_cast<Bits>(found | static_cast<Bits>(limit - magnitude));
  }
  return (found & kSign) != 0;
}

// One comparison for two elements: they have an order if none is a NaN.
[[gnu::always_inline]] inline bool unordered(const float* elements, int64_t count) {
  const int64_t half = count / 2;
  const float *second = elements + half, last = count > 0 ? elements[count - 1] : 0;
  int32_t found = 0;
#pragma GCC unroll 4
  for (int64_t i = 0; i < half; ++i) found |= __builtin_isunordered(elements[i], second[i]) ? -1 : 0;
  return found != 0 || last != last;
}

// A sum is finite only if all its elements are: one addition for each. Sums of large elements may overflow, so it is
// not the last word.
[[gnu::always_inline]] inline bool all_sums_finite(const float* elements, int64_t count) {
  constexpr int64_t kSums = 64;
  std::array<uint32_t, kSums> bits;
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) sums[j] += elements[i + j];
  }
  for (int64_t j = 0; i < count; ++i, ++j) sums[j] += elements[i];
  std::memcpy(bits.data(), sums, sizeof sums);
  return !above(bits.data(), kSums, kFloatInfinity - 1);
}

constexpr int64_t kFew = 512;  // elements, for which sums take longer

/// `T`: `parts` numbers of the same kind; `infinity`: the bits of one.
template <class T, class Bits>
bool any_above(const at::Tensor& tensor, Bits infinity, bool inf) {
  constexpr auto kParts = static_cast<int64_t>(sizeof(T) / sizeof(Bits));
  const auto limit = static_cast<Bits>(infinity - (inf ? 1 : 0));
  return any_run<T>(tensor, [&](const T* elements, int64_t count) {
    return wide<above<Bits>>(reinterpret_cast<const Bits*>(elements), count * kParts, limit);
  });
}

/// `T`: one or two floats.
template <class T>
bool any_nonfinite(const at::Tensor& tensor) {
  return any_run<T>(tensor, [](const T* elements, int64_t count) {
    const int64_t floats = count * int64_t(sizeof(T) / sizeof(float));
    if (floats >= kFew && wide<all_sums_finite>(reinterpret_cast<const float*>(elements), floats)) return false;
    return wide<above<uint32_t>>(reinterpret_cast<const uint32_t*>(elements), floats, kFloatInfinity - 1);
  });
}

/// `T`: one or two floats.
template <class T>
bool any_nan(const at::Tensor& tensor) {
  return any_run<T>(tensor, [](const T* elements, int64_t count) {
    return wide<unordered>(reinterpret_cast<const float*>(elements), count * int64_t(sizeof(T) / sizeof(float)));
  });
}

}  // namespace

std::optional<bool> has_nonfinite(const at::Tensor& tensor, bool inf) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return !inf ? any_nan<float>(tensor) : any_nonfinite<float>(tensor);
    case at::kDouble: return any_above<uint64_t>(tensor, kDoubleInfinity, inf);
    case at::kHalf: return any_above<uint16_t>(tensor, uint16_t(0x7c00), inf);
    case at::kBFloat16: return any_above<uint16_t>(tensor, uint16_t(0x7f80), inf);
    case at::kComplexHalf: return any_above<uint32_t>(tensor, uint16_t(0x7c00), inf);
    case at::kComplexFloat:
      return !inf ? any_nan<c10::complex<float>>(tensor) : any_nonfinite<c10::complex<float>>(tensor);
    case at::kComplexDouble: return any_above<c10::complex<double>>(tensor, kDoubleInfinity, inf);
    default: break;
  }
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) return false;
  return std::nullopt;
}

namespace {

bool is_finite(const c10::IValue& operand, bool inf, Reads* reads) {
  return each_tensor(operand, [&](const at::Tensor& tensor) {
    if (reads && has_tangent(tensor)) reads->tangents.fetch_add(1, std::memory_order_relaxed);
    if (is_plain(tensor) && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) return true;
    return is_readable(tensor) && has_nonfinite(tensor, inf) == false;
  });
}

}  // namespace

bool are_finite(Values& values, bool inf, const std::vector<size_t>& written, Reads* reads) {
  OpCall& call = values.call();
  const Side side = side_of(values.point());
  for (size_t i = 0; i < values.size(); ++i) {
    if (!is_finite(operand(call, side, values.position(i)), inf, reads)) return false;
  }
  for (const size_t position : written) {
    if (!is_finite(operand(call, Side::kInputs, position), inf, nullptr)) return false;
  }
  const auto count = static_cast<int64_t>(values.size() + written.size());
  if (reads) reads->results.fetch_add(count, std::memory_order_relaxed);
  return true;
}

bool keeps_incoming(OpCall& call) {
  const auto node = torch::autograd::get_current_node();
  const auto* accumulates = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get());
  if (!accumulates || torch::autograd::impl::post_acc_grad_hooks(accumulates->variable)) return false;
  const at::Tensor& kept = accumulates->variable.grad();
  if (!kept.defined()) return true;
  const c10::IValue& incoming = operand(call, Side::kInputs, 0);
  const auto has_memory = [](const at::Tensor& tensor) {
    return tensor.defined() && is_plain(tensor) && tensor.layout() == c10::kStrided && tensor.has_storage();
  };
  return incoming.isTensor() && has_memory(incoming.toTensor()) && has_memory(kept) &&
         kept.is_alias_of(incoming.toTensor());
}

void bind_finite(pybind11::module_& m) {
  namespace py = pybind11;
  py::class_<Reads, std::shared_ptr<Reads>>(m, "Reads", "How many results were read, and how many had a tangent.")
      .def(py::init<>())
      .def_property_readonly("results", [](const Reads& reads) { return reads.results.load(); })
      .def_property_readonly("tangents", [](const Reads& reads) { return reads.tangents.load(); })
      .def(
          "add_results", [](Reads& reads, int64_t count) { reads.results += count; }, py::arg("count"))
      .def("reset", [](Reads& reads) { reads.results = reads.tangents = 0; });
  m.def(
      "are_finite",
      [](bool inf, const std::vector<size_t>& written, std::shared_ptr<Reads> reads) {
        return python::capsule_of([inf, written, reads = std::move(reads)](Values& values) {
          return are_finite(values, inf, written, reads.get());
        });
      },
      py::arg("inf"), py::arg("written") = std::vector<size_t>(), py::arg("reads") = py::none(),
      "A routine for `_core.NativeRoutine`. It declines where an operand has a NaN (with `inf` an infinity, too), or "
      "can't be read in C++. `written`: inputs that it reads, too, by position, after an operator that returns "
      "nothing.");
  m.def(
      "keeps_incoming", [] { return python::capsule_of([](Values& values) { return keeps_incoming(values.call()); }); },
      "A routine after AccumulateGrad. It declines where the leaf's gradient may have other elements than the one that "
      "came in.");
}

}  // namespace amanda::tools::pytorch
