// The findings of GradientStatistics about the backward operators of PyTorch.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "amanda/action.h"
#include "values/rows.h"

namespace amanda::tools::pytorch {

/// The norms of one gradient.
struct Norms {
  int64_t undefined = 0, nonfinite = 0, finite = 0;
  std::optional<double> last{};
  int64_t last_ns = 0;  // when, on the steady clock
  double min = std::numeric_limits<double>::infinity(), max = -std::numeric_limits<double>::infinity(), sum = 0;

  /// Adds a norm, which is empty for an undefined gradient.
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
  /// The gradients that a backward operator received, and those that it computed.
  using Sides = std::array<Gradients, 2>;

  /// A routine before or after the backward operator. Returns false if a gradient cannot be read here; nothing was then
  /// recorded.
  bool record(Values& values, OpId id);

  std::vector<Row<Sides>> rows() const { return rows_.all(); }
  void reset() { rows_.clear(); }

 private:
  Rows<Sides> rows_;
};

}  // namespace amanda::tools::pytorch
