// Counts operators that are linear in two operands, each by itself: in a graph without composite operators.
#pragma once

#include <memory>

#include "amanda/amanda.h"
#include "flops/flop_counts.h"
#include "flops/tensorflow_formulas.h"

namespace amanda::tools {

/// Counts TensorFlow's operators. What is known when the graph is built is counted without a look at its operands.
class BilinearCounter {
 public:
  /// Adds to `counts`.
  explicit BilinearCounter(std::shared_ptr<FlopCounts> counts) : counts_(std::move(counts)) {}

  /// Of an operator that has a formula.
  void analyze(OpContext& context);
  /// Of a backward operator that would have a formula, too.
  void analyze_backward(OpContext& context);
  /// Lists an operator, if it has no formula.
  void list_uncounted(OpContext& context);

 private:
  const std::shared_ptr<FlopCounts> counts_;
};

}  // namespace amanda::tools
