// Options of Flops, and the description of an operator that it counts in a graph.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace amanda::tools {

/// A product of matrices; a convolution; one whose filter is applied to the input's elements.
enum class FlopsFormula : uint8_t { kProduct, kConvolution, kTransposedConvolution };

/// An operator of a framework whose graphs have no composite operators.
struct FlopsOperator {
  std::string name;                               ///< "onnx::Conv"
  FlopsFormula formula = FlopsFormula::kProduct;  ///< what it computes
  std::string input;                              ///< the name of its input, or left factor
  std::string weight;                             ///< the name of its weight, or right factor
  std::string weight_layout{};                    ///< of a convolution: "OIHW", as in amanda.tools.mapping
};

/// Options of Flops.
struct FlopsOptions {
  bool uncounted = true;       ///< look at all operators, to list those that do not multiply, or are unknown, too
  bool cpu_attention = false;  ///< also count fused attention on the CPU, which FlopCounterMode does not
  std::vector<FlopsOperator> operators{};  ///< of graphs of other frameworks
};

}  // namespace amanda::tools
