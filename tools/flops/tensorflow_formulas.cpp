#include "flops/tensorflow_formulas.h"

#include <map>
#include <set>
#include <string_view>

#include "flops/formulas.h"

namespace amanda::tools {
namespace {

using Counted = std::optional<int64_t>;

// A filter is (spatial..., in, out) in every layout of the images, so the images' layout does not matter: each element
// of the forward convolution's output, of which `image` has the size, takes a product with (spatial..., in).
template <size_t kDimensions>
Counted by_filter(const IntVector& image, const IntVector& filter) {
  if (image.size() != kDimensions + 2 || filter.size() != kDimensions + 2) return std::nullopt;
  return 2 * product(image) * product(Sizes(filter).first(kDimensions + 1));
}

template <size_t kDimensions>
Counted convolution(const IntVector&, const IntVector& filter, const IntVector& output, const std::string&) {
  return by_filter<kDimensions>(output, filter);
}
template <size_t kDimensions>
Counted input_gradient(const IntVector& filter, const IntVector& grad, const IntVector&, const std::string&) {
  return by_filter<kDimensions>(grad, filter);
}
template <size_t kDimensions>
Counted filter_gradient(const IntVector&, const IntVector& grad, const IntVector& output, const std::string&) {
  return by_filter<kDimensions>(grad, output);
}

// The filter is (height, width, channels, multiplier): each element of the output takes a product with one channel.
Counted by_depthwise_filter(const IntVector& image, const IntVector& filter) {
  if (image.size() != 4 || filter.size() != 4) return std::nullopt;
  return 2 * product(image) * filter[0] * filter[1];
}
Counted depthwise(const IntVector&, const IntVector& filter, const IntVector& output, const std::string&) {
  return by_depthwise_filter(output, filter);
}
Counted depthwise_input_gradient(const IntVector& filter, const IntVector& grad, const IntVector&, const std::string&) {
  return by_depthwise_filter(grad, filter);
}
Counted depthwise_filter_gradient(const IntVector&, const IntVector& grad, const IntVector& output,
                                  const std::string&) {
  return by_depthwise_filter(grad, output);
}

// a: (..., m, k) or transposed, output: (..., m, n), with broadcast batches.
Counted matmul(const IntVector& a, const IntVector&, const IntVector& output, const std::string&) {
  if (a.size() < 2 || output.size() < 2) return std::nullopt;
  const int64_t rows = output[output.size() - 2];
  return rows == 0 ? 0 : 2 * product(output) * (a[a.size() - 2] * a[a.size() - 1] / rows);
}

// The sizes of a term's labels. An ellipsis's dimensions are counted from the right; they broadcast.
struct Labels {
  std::map<char, int64_t> sizes;
  std::map<size_t, int64_t> ellipsis;

  static std::optional<Labels> of(std::string_view term, const IntVector& sizes) {
    Labels labels;
    const size_t dots = term.find("..."), named = term.size() - (dots == term.npos ? 0 : 3);
    if (dots == term.npos ? sizes.size() != named : sizes.size() < named) return std::nullopt;
    const size_t more = sizes.size() - named;
    for (size_t i = 0, at = 0; i < term.size(); ++i) {
      if (i == dots) {
        for (size_t j = 0; j < more; ++j) labels.ellipsis[more - j] = sizes[at++];
        i += 2;
      } else {
        labels.sizes[term[i]] = sizes[at++];
      }
    }
    return labels;
  }
};

// A label of one operand alone that the result does not have is summed over first.
Counted einsum(const IntVector& a, const IntVector& b, const IntVector&, const std::string& equation) {
  const size_t comma = equation.find(','), arrow = equation.find("->");
  if (comma == equation.npos || arrow == equation.npos || equation.find(',', comma + 1) != equation.npos) {
    return std::nullopt;
  }
  const std::string_view text = equation, result = text.substr(arrow + 2);
  const auto left = Labels::of(text.substr(0, comma), a);
  const auto right = Labels::of(text.substr(comma + 1, arrow - comma - 1), b);
  if (!left || !right) return std::nullopt;
  int64_t flops = 2;
  for (const auto& [label, size] : left->sizes) {
    if (right->sizes.contains(label) || result.find(label) != result.npos) flops *= size;
  }
  for (const auto& [label, size] : right->sizes) {
    if (!left->sizes.contains(label) && result.find(label) != result.npos) flops *= size;
  }
  auto ellipsis = left->ellipsis;
  for (const auto& [place, size] : right->ellipsis) {
    int64_t& broadcast = ellipsis.try_emplace(place, size).first->second;
    if (broadcast == 1) broadcast = size;
  }
  for (const auto& [place, size] : ellipsis) flops *= size;
  return flops;
}

const std::map<std::string, BilinearOperator> kOperators = {
    {"BatchMatMul", {matmul, 0, 1}},
    {"BatchMatMulV2", {matmul, 0, 1}},
    {"BatchMatMulV3", {matmul, 0, 1}},
    {"Conv2D", {convolution<2>, 0, 1}},
    {"Conv2DBackpropFilter", {filter_gradient<2>, 0, 2}},
    {"Conv2DBackpropFilterV2", {filter_gradient<2>, 0, 2}},
    {"Conv2DBackpropInput", {input_gradient<2>, 1, 2}},
    {"Conv2DBackpropInputV2", {input_gradient<2>, 1, 2}},
    {"Conv3D", {convolution<3>, 0, 1}},
    {"Conv3DBackpropFilter", {filter_gradient<3>, 0, 2}},
    {"Conv3DBackpropFilterV2", {filter_gradient<3>, 0, 2}},
    {"Conv3DBackpropInput", {input_gradient<3>, 1, 2}},
    {"Conv3DBackpropInputV2", {input_gradient<3>, 1, 2}},
    {"DepthwiseConv2dNative", {depthwise, 0, 1}},
    {"DepthwiseConv2dNativeBackpropFilter", {depthwise_filter_gradient, 0, 2}},
    {"DepthwiseConv2dNativeBackpropInput", {depthwise_input_gradient, 1, 2}},
    {"Einsum", {einsum, 0, 0}},
    {"FusedPadConv2D", {convolution<2>, 0, 2}},
    {"FusedResizeAndPadConv2D", {convolution<2>, 0, 3}},
    {"MatMul", {matmul, 0, 1}},
    {"SparseMatMul", {matmul, 0, 1}},
    {"_FusedConv2D", {convolution<2>, 0, 1}},
    {"_FusedMatMul", {matmul, 0, 1}},
};

const std::set<std::string> kViews = {
    "ExpandDims", "Identity",   "IdentityN", "PreventGradient", "Rank",    "ReadVariableOp", "Reshape",
    "Shape",      "ShapeN",     "Size",      "Snapshot",        "Squeeze", "StopGradient",   "VarHandleOp",
    "Variable",   "VariableV2",
};

}  // namespace

const BilinearOperator* find_tensorflow_operator(const std::string& name) {
  const auto found = kOperators.find(name);
  return found == kOperators.end() ? nullptr : &found->second;
}

std::vector<std::string> tensorflow_operators() {
  std::vector<std::string> names;
  for (const auto& [name, op] : kOperators) names.push_back("tensorflow::" + name);
  return names;
}

bool is_tensorflow_view(const std::string& name) { return kViews.contains(name); }

}  // namespace amanda::tools
