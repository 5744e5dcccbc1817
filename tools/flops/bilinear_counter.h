// Counts operators that are linear in two operands, each by itself: in a graph without composite operators.
#pragma once

#include <map>
#include <memory>

#include "amanda/amanda.h"
#include "amanda/base/mutex.h"
#include "flops/bilinear_runs.h"
#include "flops/flop_counts.h"
#include "flops/tensorflow_formulas.h"

namespace amanda::tools {

/// Counts TensorFlow's operators, by the shapes of each run: an analysis may be of several nodes, in graphs for other
/// shapes.
class BilinearCounter {
 public:
  /// Adds to `counts`.
  explicit BilinearCounter(std::shared_ptr<FlopCounts> counts) : counts_(std::move(counts)) {}

  /// Analyzes an operator that has a formula.
  void analyze(OpContext& context);
  /// Analyzes a backward operator that would have a formula, too.
  void analyze_backward(OpContext& context);
  /// Lists an operator, if it has no formula.
  void list_uncounted(OpContext& context);

 private:
  std::shared_ptr<BilinearRuns> runs(OpId id);

  const std::shared_ptr<FlopCounts> counts_;
  Mutex mutex_;  // of the map
  std::map<OpId, std::shared_ptr<BilinearRuns>> runs_;
};

}  // namespace amanda::tools
