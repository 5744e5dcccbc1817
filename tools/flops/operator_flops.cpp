#include "flops/operator_flops.h"

#include <algorithm>
#include <utility>

#include "amanda/driver/backend.h"
#include "flops/formulas.h"

namespace amanda::tools {
namespace {

ValueInfo describe(const Values& values, size_t i) { return values.call().backend().describe(values[i]); }

/// A list argument of the operator: one element for each spatial dimension, or one for all.
class PerDimension {
 public:
  PerDimension(const Values& values, size_t i) : list_(describe(values, i).integers) {}
  bool fits(size_t dimensions) const { return list_.size() == 1 || list_.size() == dimensions; }
  int64_t operator[](size_t i) const { return list_[list_.size() == 1 ? 0 : i]; }

 private:
  const IntVector list_;
};

/// A bool or int argument of the operator.
std::optional<int64_t> integer(const Values& values, size_t i) {
  const IntVector integers = describe(values, i).integers;
  return integers.size() == 1 ? std::optional(integers[0]) : std::nullopt;
}

struct Convolution {
  IntVector output;
  bool transposed;
  int64_t groups;
};

// `values`: stride, padding, dilation, transposed, output_padding, groups from `first` on.
std::optional<Convolution> convolution(const Values& values, size_t first, const IntVector& input,
                                       const IntVector& weight) {
  const PerDimension stride(values, first), padding(values, first + 1), dilation(values, first + 2);
  const std::optional<int64_t> transposed = integer(values, first + 3), groups = integer(values, first + 5);
  const PerDimension output_padding(values, first + 4);
  if (!transposed || !groups || input.size() < 3 || weight.size() != input.size()) return std::nullopt;
  for (const PerDimension* list : {&stride, &padding, &dilation, &output_padding}) {
    if (!list->fits(input.size() - 2)) return std::nullopt;
  }
  IntVector output{input[0], *transposed ? weight[1] * *groups : weight[0]};
  for (size_t i = 0; i + 2 < input.size(); ++i) {
    if (stride[i] <= 0) return std::nullopt;
    const int64_t length = input[i + 2], reach = dilation[i] * (weight[i + 2] - 1) + 1;
    output.push_back(*transposed ? (length - 1) * stride[i] - 2 * padding[i] + reach + output_padding[i]
                                 : (length + 2 * padding[i] - reach) / stride[i] + 1);
  }
  return Convolution{std::move(output), *transposed != 0, *groups};
}

}  // namespace

std::optional<IntVector> sizes_of(const Values& values, size_t i) {
  std::optional<IntVector> sizes = describe(values, i).sizes;
  if (sizes && std::find(sizes->begin(), sizes->end(), kUnknown) != sizes->end()) return std::nullopt;
  return sizes;
}

std::optional<int64_t> flops_of_matmul(const Values& values) {
  const auto a = sizes_of(values, 0), b = sizes_of(values, 1);
  if (!a || !b || a->size() < 2 || b->size() < 2) return std::nullopt;
  return matmul_flops(*a, *b);
}

std::optional<int64_t> flops_of_convolution(const Values& values, ForwardRuns& runs) {
  const auto input = sizes_of(values, 0), weight = sizes_of(values, 1);
  if (!input || !weight) return std::nullopt;
  auto made = convolution(values, 2, *input, *weight);
  if (!made) return std::nullopt;
  const int64_t flops = convolution_flops(*input, *weight, made->output, made->transposed);
  runs.note({.inputs = {*input, *weight}, .output = std::move(made->output), .flops = flops, .groups = made->groups});
  return flops;
}

std::optional<int64_t> flops_of_convolution_backward(const Values& values) {
  const auto grad = sizes_of(values, 0), input = sizes_of(values, 1), weight = sizes_of(values, 2);
  if (!grad || !input || !weight || grad->size() < 3 || input->size() < 3) return std::nullopt;
  const std::optional<int64_t> transposed = integer(values, 3), groups = integer(values, 4);
  const IntVector mask = describe(values, 5).integers;
  if (!transposed || !groups || mask.size() != 3) return std::nullopt;
  return convolution_backward_flops(convolution_flops(*input, *weight, *grad, *transposed), *groups, mask[0], mask[1]);
}

std::optional<int64_t> flops_of_attention(const Values& values, ForwardRuns& runs) {
  const auto query = sizes_of(values, 0), key = sizes_of(values, 1), value = sizes_of(values, 2);
  if (!query || !key || !value || query->size() != 4 || value->size() != 4) return std::nullopt;
  const IntVector output{(*query)[0], (*query)[1], (*query)[2], (*value)[3]};
  runs.note({.inputs = {*query, *key, *value},
             .output = output,
             .flops = attention_backward_flops(*query, *value),
             .groups = 1});
  return attention_flops(*query, *value);
}

}  // namespace amanda::tools
