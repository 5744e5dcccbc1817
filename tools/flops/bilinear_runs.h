// The shapes of an operator's runs, for its backward operators.
#pragma once

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "amanda/mutex.h"
#include "flops/tensorflow_formulas.h"

namespace amanda::tools {

/// A backward operator shows some of the shapes of the forward run that it belongs to, or none.
class BilinearRuns {
 public:
  /// Notes a forward run; its sizes are known.
  void note(BilinearShapes shapes, int64_t flops) {
    std::lock_guard lock(mutex_);
    Run run{std::move(shapes), flops};
    if (!runs_.empty() && runs_.back() == run) return;
    std::erase(runs_, run);
    if (runs_.size() == kMaxRuns) runs_.erase(runs_.begin());
    runs_.push_back(std::move(run));
  }

  /// The operations of the runs that have these sizes, as far as they are known. Empty: there is none, or they differ.
  std::optional<int64_t> flops(const BilinearShapes& known) const {
    std::lock_guard lock(mutex_);
    const auto same = [](const auto& ours, const auto& theirs) { return !theirs || ours == theirs; };
    std::optional<int64_t> found;
    for (const auto& [shapes, flops] : runs_) {
      if (!same(shapes.a, known.a) || !same(shapes.b, known.b) || !same(shapes.output, known.output)) continue;
      if (found && *found != flops) return std::nullopt;
      found = flops;
    }
    return found;
  }

 private:
  struct Run {
    BilinearShapes shapes;
    int64_t flops;
    bool operator==(const Run&) const = default;
  };
  static constexpr size_t kMaxRuns = 64;  // of different shapes, between a forward run and its backward one
  mutable Mutex mutex_;
  std::vector<Run> runs_;
};

}  // namespace amanda::tools
