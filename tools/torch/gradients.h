// What GradientStatistics has found of the backward operators of PyTorch.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "amanda/action.h"
#include "amanda/mutex.h"

namespace amanda::tools::pytorch {

/// The norms of one gradient.
struct Norms {
  int64_t undefined = 0, nonfinite = 0, finite = 0;
  std::optional<double> last{};
  int64_t last_ns = 0;  // when, on the steady clock
  double min = std::numeric_limits<double>::infinity(), max = -std::numeric_limits<double>::infinity(), sum = 0;

  /// Of an undefined gradient there is none.
  void add(std::optional<double> norm);
};

/// May be used on any thread.
class GradientRecorder {
 public:
  /// The gradients on one side of a backward operator.
  struct Gradients {
    int64_t calls = 0;
    std::vector<Norms> norms{};
  };
  /// All runs of one backward operator: what it received, and what it computed.
  struct Row {
    OpId id;
    int64_t first_ns = 0;
    std::array<Gradients, 2> sides{};
  };

  /// A routine before or after the backward operator. False: a gradient cannot be read here, and nothing was recorded.
  bool record(Values& values, OpId id);

  std::vector<Row> rows() const;
  void reset();

 private:
  mutable Mutex mutex_;
  std::map<OpId, Row> rows_;
};

}  // namespace amanda::tools::pytorch
