// Counts operators that have a formula, and lists those that multiply without one, also inside composite operators.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "amanda/amanda.h"
#include "amanda/base/mutex.h"
#include "flops/bilinear_counter.h"
#include "flops/flop_counts.h"
#include "flops/flops_options.h"
#include "flops/forward_runs.h"
#include "flops/torch_operators.h"

namespace amanda::tools {

class FlopCounter final : public Tool {
 public:
  /// `index`: of its flag in counted_inside().
  FlopCounter(size_t index, const FlopsOptions& options, std::shared_ptr<FlopCounts> counts);

  /// The operators of PyTorch that it looks for.
  static std::vector<std::string> torch_types();
  /// All operators that it looks for.
  std::vector<std::string> types() const;
  /// A tool's flag on this thread: nonzero if something was counted or listed since the previous outermost operator.
  static uint8_t& counted_inside(size_t index);
  /// Lists a backward operator as a product that is not counted.
  static void list_backward(OpContext& context, const std::shared_ptr<FlopCounts>& counts);
  /// The counter of operators of graphs.
  const std::shared_ptr<BilinearCounter>& bilinear() const { return bilinear_; }

 private:
  struct GradOutput;
  /// The result of a formula, found before the operator runs.
  struct Count {
    std::optional<int64_t> flops{};  // empty if the formula does not cover these operands
    bool is_partial = false;         // there are more products, without a formula
  };
  using Formula = std::function<Count(Values&)>;
  using Grads = std::array<std::optional<IntVector>, 3>;

  void analyze(OpContext& context);
  void analyze_backward(OpContext& context);
  void count(OpContext& context, Positions inputs, Formula formula);
  void count_sized(OpContext& context, const TorchOperator& op);
  void list(OpContext& context);
  void count_backward(OpContext& context, Positions grads,
                      std::function<std::optional<int64_t>(const std::optional<IntVector>& output, const Grads&)>);
  void count_matmul_backward(OpContext& context, int64_t first);
  void count_by_forward_run(OpContext& context, Positions grads, bool is_bilinear);
  void count_recurrent_backward(OpContext& context);
  std::shared_ptr<ForwardRuns> forward_runs(OpId id);

  const size_t index_;
  const bool cpu_attention_;
  const std::shared_ptr<FlopCounts> counts_;
  const std::shared_ptr<BilinearCounter> bilinear_;
  Mutex mutex_;  // of the map
  std::map<OpId, std::shared_ptr<ForwardRuns>> forward_runs_;
};

/// Lists the backward operators of those whose products the counter sees one by one: were they its own, too, it would
/// see them as one.
class UncountedGradients final : public Tool {
 public:
  explicit UncountedGradients(const std::shared_ptr<FlopCounts>& counts);
};

}  // namespace amanda::tools
