// Flops: floating point operations of every operator run, forward and backward, per operator type and module.
// Teaches: a filter that looks through composite operators, counting by shape, what a backward operator needs to know
// of its forward operator's runs, a tool that depends on another.
#pragma once

#include <memory>

#include "amanda/amanda.h"
#include "flops/flop_counts.h"

namespace amanda::tools {

struct FlopsOptions {
  bool uncounted = true;       // look at all operators, to list those without a formula
  bool cpu_attention = false;  // count fused attention on the CPU, too, which FlopCounterMode does not
};

/// Counts, over as many runs, scopes and threads as it is used in.
///
/// An operator that raises is not counted.
class Flops : public Tool {
 public:
  explicit Flops(FlopsOptions options = {});
  ~Flops() override;

  /// Outlives the tool, if kept.
  const std::shared_ptr<FlopCounts>& counts() const { return counts_; }

 private:
  class Counter;
  std::shared_ptr<FlopCounts> counts_ = std::make_shared<FlopCounts>();
  std::unique_ptr<Counter> counter_;
};

}  // namespace amanda::tools
