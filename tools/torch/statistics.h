// What OpStatistics has found of the operators that PyTorch ran eagerly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "amanda/action.h"
#include "amanda/mutex.h"
#include "torch/elements.h"

namespace amanda::tools::pytorch {

/// May be used on any thread.
class StatisticsRecorder {
 public:
  /// All runs of one operator.
  struct Row {
    OpId id;
    int64_t first_ns = 0, calls = 0;  // the first run, on the steady clock
    std::vector<Summary> outputs{};
  };

  /// A routine after the operator. False: it has an output that cannot be read here, and nothing was recorded.
  bool record(Values& values, OpId id);

  std::vector<Row> rows() const;
  void reset();

 private:
  mutable Mutex mutex_;
  std::map<OpId, Row> rows_;
};

}  // namespace amanda::tools::pytorch
