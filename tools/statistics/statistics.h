// The findings of OpStatistics about the operators that PyTorch ran eagerly.
#pragma once

#include <cstdint>
#include <vector>

#include "amanda/action.h"
#include "values/elements.h"
#include "values/rows.h"
#include "values/unwritten.h"

namespace amanda::tools::pytorch {

/// May be used on any thread.
class StatisticsRecorder {
 public:
  /// All runs of one operator.
  struct Found {
    int64_t calls = 0;
    std::vector<Summary> outputs{};
  };

  /// A routine after the operator. Returns false if it has an output that cannot be read here, or that is in memory
  /// that has no values yet; nothing was then recorded.
  bool record(Values& values, OpId id, UnwrittenMemory* memory = nullptr);
  /// The same, of an operator whose results have no values.
  bool record_run(Values& values, OpId id);

  std::vector<Row<Found>> rows() const { return rows_.all(); }
  void reset() { rows_.clear(); }

 private:
  void add(OpId id, c10::ArrayRef<Summary> found);

  Rows<Found> rows_;
};

}  // namespace amanda::tools::pytorch
