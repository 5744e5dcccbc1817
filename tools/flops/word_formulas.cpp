#include "flops/word_formulas.h"

#include <algorithm>
#include <iterator>

#include "flops/formulas.h"

namespace amanda::tools {
namespace {

using Counted = std::optional<int64_t>;

// The matrix is (..., kept, inner) or (..., inner, kept): its last two sizes, without the one that the result has.
Counted inner_size(const std::optional<IntVector>& matrix, int64_t kept) {
  if (!matrix || matrix->size() < 2) return std::nullopt;
  const Counted elements = known_product(Sizes(*matrix).last(2));
  return elements ? Counted(*elements / kept) : std::nullopt;
}

std::optional<int64_t> position_of(const std::string& name, const OpInfo& op) {
  const auto found = std::find(op.inputs.begin(), op.inputs.end(), name);
  return found == op.inputs.end() ? std::nullopt : Counted(std::distance(op.inputs.begin(), found));
}

}  // namespace

Counted matmul_of(const BilinearShapes& shapes) {
  const auto& output = shapes.output;
  if (!output || output->size() < 2) return std::nullopt;
  const Counted elements = known_product(*output);
  if (!elements || *elements == 0) return elements;
  const Counted inner = inner_size(shapes.a, (*output)[output->size() - 2]);
  const Counted found = inner ? inner : inner_size(shapes.b, (*output)[output->size() - 1]);
  return found ? Counted(2 * *elements * *found) : std::nullopt;
}

// Each element of the images that the filter is applied to takes a product with each element of one channel's filter.
Counted convolution_of(const BilinearShapes& shapes, const std::string& layout, bool transposed) {
  const auto& images = transposed ? shapes.a : shapes.output;
  const auto& filter = shapes.b;
  if (!images || !filter || images->size() != layout.size() || filter->size() != layout.size()) return std::nullopt;
  const std::string channels = layout.find('M') != layout.npos ? "IM" : transposed ? "I" : "O";
  IntVector products;
  for (size_t i = 0; i < layout.size(); ++i) {
    if (channels.find(layout[i]) == channels.npos) products.push_back((*filter)[i]);
  }
  const Counted elements = known_product(*images), each = known_product(products);
  return elements && each ? Counted(2 * *elements * *each) : std::nullopt;
}

std::optional<BilinearOperator> find_described(const std::vector<FlopsOperator>& descriptions, const OpInfo& op) {
  const FlopsOperator& first = descriptions.front();
  const auto input = position_of(first.input, op), weight = position_of(first.weight, op);
  if (!input || !weight) return std::nullopt;
  const auto flops = [descriptions](const BilinearShapes& shapes, const std::string&) {
    for (const FlopsOperator& each : descriptions) {
      const bool is_product = each.formula == FlopsFormula::kProduct;
      const Counted found =
          is_product ? matmul_of(shapes)
                     : convolution_of(shapes, each.weight_layout, each.formula == FlopsFormula::kTransposedConvolution);
      if (found) return found;
    }
    return Counted();
  };
  return BilinearOperator{flops, *input, *weight};
}

}  // namespace amanda::tools
