// What OpStatistics has found of the operators that PyTorch ran eagerly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "amanda/action.h"
#include "torch/elements.h"
#include "torch/rows.h"

namespace amanda::tools::pytorch {

/// May be used on any thread.
class StatisticsRecorder {
 public:
  /// All runs of one operator.
  struct Found {
    int64_t calls = 0;
    std::vector<Summary> outputs{};
  };

  /// A routine after the operator. False: it has an output that cannot be read here, and nothing was recorded.
  bool record(Values& values, OpId id);

  std::vector<Row<Found>> rows() const { return rows_.all(); }
  void reset() { rows_.clear(); }

 private:
  Rows<Found> rows_;
};

}  // namespace amanda::tools::pytorch
