// Counts operators that are linear in two operands, each by itself: in a graph without composite operators.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "amanda/amanda.h"
#include "amanda/base/mutex.h"
#include "flops/bilinear_runs.h"
#include "flops/flop_counts.h"
#include "flops/flops_options.h"

namespace amanda::tools {

/// Counts operators of graphs, by the shapes of each run: an analysis may be of several nodes, in graphs for other
/// shapes.
class BilinearCounter {
 public:
  /// Adds to `counts`. `operators`: those that have a formula, in addition to some of TensorFlow.
  BilinearCounter(std::shared_ptr<FlopCounts> counts, const std::vector<FlopsOperator>& operators);

  /// The names of the operators that have a formula: "onnx::Conv".
  std::vector<std::string> types() const;
  /// True if it counts operators of this namespace, or of one around it: "onnx".
  bool knows(const std::string& ns) const;
  /// Analyzes an operator that has a formula.
  void analyze(OpContext& context);
  /// Analyzes a backward operator that would have a formula, too.
  void analyze_backward(OpContext& context);
  /// Lists an operator, if it has no formula.
  void list_uncounted(OpContext& context);

 private:
  bool has_formula(const OpInfo& op) const;
  std::optional<BilinearOperator> find(const OpInfo& op) const;
  std::shared_ptr<BilinearRuns> runs(OpId id);

  const std::shared_ptr<FlopCounts> counts_;
  std::map<std::string, std::vector<FlopsOperator>> operators_;  // by name
  Mutex mutex_;                                                  // of the map
  std::map<OpId, std::shared_ptr<BilinearRuns>> runs_;
};

}  // namespace amanda::tools
