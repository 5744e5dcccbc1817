// Data about forward runs at one place, for its backward operators.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "amanda/base/mutex.h"
#include "amanda/value.h"

namespace amanda::tools {

/// Gradients show neither a stride nor a filter's size: a forward run is found by its shapes, the latest among equals.
class ForwardRuns {
 public:
  struct Run {
    std::array<IntVector, 3> inputs;  // an empty one is not compared
    IntVector output;
    int64_t flops;   // forward; of attention: backward
    int64_t groups;  // of a convolution; else 1

    bool operator==(const Run&) const = default;
  };

  void note(Run run) {
    std::lock_guard lock(mutex_);
    if (!runs_.empty() && runs_.back() == run) return;
    std::erase(runs_, run);
    if (runs_.size() == kMaxRuns) runs_.erase(runs_.begin());
    runs_.push_back(std::move(run));
  }

  /// By the gradients' sizes: of the output (empty: it has none), and of those inputs that have one.
  std::optional<Run> find(const IntVector& output, const std::array<std::optional<IntVector>, 3>& inputs) const {
    std::lock_guard lock(mutex_);
    for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
      bool fits = output.empty() || run->output == output;
      for (size_t i = 0; i < inputs.size() && fits; ++i) fits = !inputs[i] || *inputs[i] == run->inputs[i];
      if (fits) return *run;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kMaxRuns = 64;  // of different shapes, between a forward run and its backward one
  mutable Mutex mutex_;
  std::vector<Run> runs_;
};

}  // namespace amanda::tools
