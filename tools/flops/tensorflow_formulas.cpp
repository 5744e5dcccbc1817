#include "flops/tensorflow_formulas.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "flops/formulas.h"
#include "flops/word_formulas.h"

namespace amanda::tools {
namespace {

using Counted = std::optional<int64_t>;

// A gradient is counted as the convolution, whose output is as large as the gradient that it takes.
Counted convolution2d(const BilinearShapes& shapes, const std::string&) { return convolution_of(shapes, "HWIO"); }
template <char kSpatial>
Counted input_gradient(const BilinearShapes& shapes, const std::string&) {
  return convolution_of({.b = shapes.a, .output = shapes.b}, kSpatial == '2' ? "HWIO" : "DHWIO");
}
template <char kSpatial>
Counted filter_gradient(const BilinearShapes& shapes, const std::string&) {
  return convolution_of({.b = shapes.output, .output = shapes.b}, kSpatial == '2' ? "HWIO" : "DHWIO");
}
Counted depthwise_input_gradient(const BilinearShapes& shapes, const std::string&) {
  return convolution_of({.b = shapes.a, .output = shapes.b}, "HWIM");
}
Counted depthwise_filter_gradient(const BilinearShapes& shapes, const std::string&) {
  return convolution_of({.b = shapes.output, .output = shapes.b}, "HWIM");
}
Counted product_of(const BilinearShapes& shapes, const std::string&) { return matmul_of(shapes); }

// One operand of an einsum: "...ij".
struct Term {
  Term(std::string_view text, const std::optional<IntVector>& shape) {
    const size_t dots = text.find("...");
    has_ellipsis = dots != text.npos;
    labels = has_ellipsis ? std::string(text.substr(0, dots)) + std::string(text.substr(dots + 3)) : std::string(text);
    if (!shape) return;
    const bool fits = has_ellipsis ? shape->size() >= labels.size() : shape->size() == labels.size();
    if (!fits) return;
    is_known = true;
    const size_t more = shape->size() - labels.size();
    for (size_t i = 0; i < shape->size(); ++i) {
      if (has_ellipsis && i >= dots && i < dots + more) {
        ellipsis.push_back((*shape)[i]);
      } else {
        int64_t& size = sizes.try_emplace(labels[i < dots || !has_ellipsis ? i : i - more], kUnknown).first->second;
        if (size == kUnknown) size = (*shape)[i];
      }
    }
  }
  bool has(char label) const { return labels.find(label) != labels.npos; }

  std::string labels;
  bool has_ellipsis = false, is_known = false;
  std::map<char, int64_t> sizes;
  IntVector ellipsis;
};

// The dimensions of the result's ellipsis, to which those of the operands broadcast from the right.
Counted ellipsis_size(const Term& left, const Term& right, const Term& result) {
  if (result.is_known && result.has_ellipsis) return known_product(result.ellipsis);
  const auto needed = [](const Term& term) { return term.has_ellipsis && !term.is_known; };
  if (needed(left) || needed(right)) return std::nullopt;
  const IntVector &a = left.ellipsis, &b = right.ellipsis;
  if (!known_product(a) || !known_product(b)) return std::nullopt;
  int64_t count = 1;
  for (size_t i = 1; i <= std::max(a.size(), b.size()); ++i) {
    const int64_t ours = i <= a.size() ? a[a.size() - i] : 1, theirs = i <= b.size() ? b[b.size() - i] : 1;
    count *= ours == 1 ? theirs : ours;
  }
  return count;
}

// A label of one operand alone that the result does not have is summed over first, so that any two of the three shapes
// contain the sizes of all others.
Counted einsum(const BilinearShapes& shapes, const std::string& equation) {
  const size_t comma = equation.find(','), arrow = equation.find("->");
  if (comma == equation.npos || arrow == equation.npos || equation.find(',', comma + 1) != equation.npos) {
    return std::nullopt;
  }
  const std::string_view text = equation;
  const Term left(text.substr(0, comma), shapes.a), right(text.substr(comma + 1, arrow - comma - 1), shapes.b);
  const Term result(text.substr(arrow + 2), shapes.output);
  const Counted broadcast = ellipsis_size(left, right, result);
  if (!broadcast) return std::nullopt;
  int64_t flops = 2 * *broadcast;
  const std::string all = left.labels + right.labels;
  for (const char label : std::set<char>(all.begin(), all.end())) {
    if (!result.has(label) && !(left.has(label) && right.has(label))) continue;
    int64_t size = kUnknown;
    for (const Term* term : {&left, &right, &result}) {
      const auto found = term->sizes.find(label);
      if (found != term->sizes.end() && found->second != kUnknown) size = found->second;
    }
    if (size == kUnknown) return std::nullopt;
    flops *= size;
  }
  return flops;
}

const std::map<std::string, BilinearOperator> kOperators = {
    {"Conv2DBackpropFilter", {filter_gradient<'2'>, 0, 2}},
    {"Conv2DBackpropFilterV2", {filter_gradient<'2'>, 0, 2}},
    {"Conv3DBackpropFilter", {filter_gradient<'3'>, 0, 2}},
    {"Conv3DBackpropFilterV2", {filter_gradient<'3'>, 0, 2}},
    {"Conv3DBackpropInput", {input_gradient<'3'>, 1, 2}},
    {"DepthwiseConv2dNativeBackpropFilter", {depthwise_filter_gradient, 0, 2}},
    {"DepthwiseConv2dNativeBackpropInput", {depthwise_input_gradient, 1, 2}},
    {"Einsum", {einsum, 0, 0}},
    {"FusedPadConv2D", {convolution2d, 0, 2}},
    {"FusedResizeAndPadConv2D", {convolution2d, 0, 3}},
    {"SparseMatMul", {product_of, 0, 1}},
    {"_FusedConv2D", {convolution2d, 0, 1}},
    {"_FusedMatMul", {product_of, 0, 1}},
};

const std::set<std::string> kViews = {
    "ExpandDims", "Identity",   "IdentityN", "PreventGradient", "Rank",    "ReadVariableOp", "Reshape",
    "Shape",      "ShapeN",     "Size",      "Snapshot",        "Squeeze", "StopGradient",   "VarHandleOp",
    "Variable",   "VariableV2",
};

}  // namespace

std::optional<BilinearOperator> find_tensorflow_operator(const std::string& name) {
  const auto found = kOperators.find(name);
  return found == kOperators.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> tensorflow_operators() {
  std::vector<std::string> names;
  for (const auto& [name, op] : kOperators) names.push_back("tensorflow::" + name);
  return names;
}

bool is_tensorflow_view(const std::string& name) { return kViews.contains(name); }

bool may_multiply(const std::string& name) {
  static const std::vector<std::string> parts = {"Attention", "Cholesky", "Conv", "Det", "DFT",     "Dot",  "Eig",
                                                 "Einsum",    "FFT",      "Gemm", "GRU", "Inverse", "LSTM", "MatMul",
                                                 "Matrix",    "MoE",      "Qr",   "RNN", "STFT",    "Svd",  "Solve"};
  return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) { return name.find(part) != name.npos; });
}

}  // namespace amanda::tools
