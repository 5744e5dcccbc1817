// The shapes of an operator's runs, for its backward operators.
#pragma once

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "amanda/base/mutex.h"
#include "flops/bilinear_operator.h"
#include "flops/flop_counts.h"

namespace amanda::tools {

/// A gradient's shape is that of its operand, but a backward operator does not show all of them: the gradient of an
/// image does not show the filter's size. In a graph the backward operator may run before the forward run is noted. It
/// is then counted when the forward run is noted.
class BilinearRuns {
 public:
  /// Notes a forward run, whose sizes are known.
  void note(BilinearShapes shapes, int64_t flops) {
    std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](const Waiting& waiting) {
      if (!fits(shapes, waiting.shapes)) return false;
      waiting.unknown->take_back();
      waiting.tally->add(flops);
      return true;
    });
    Run run{std::move(shapes), flops};
    if (!runs_.empty() && runs_.back() == run) return;
    std::erase(runs_, run);
    if (runs_.size() == kMost) runs_.erase(runs_.begin());
    runs_.push_back(std::move(run));
  }

  /// Counts a backward run by the forward runs that have the sizes that it shows. If these differ, it is unknown.
  void count(BilinearShapes shapes, FlopCounts::Tally& tally, FlopCounts::Tally& unknown) {
    std::lock_guard lock(mutex_);
    std::optional<int64_t> found;
    for (const Run& run : runs_) {
      if (!fits(run.shapes, shapes)) continue;
      if (found && *found != run.flops) return unknown.add(0);
      found = run.flops;
    }
    if (found) return tally.add(*found);
    unknown.add(0);
    if (waiting_.size() < kMost) waiting_.push_back({std::move(shapes), &tally, &unknown});
  }

 private:
  struct Run {
    BilinearShapes shapes;
    int64_t flops;
    bool operator==(const Run&) const = default;
  };
  struct Waiting {
    BilinearShapes shapes;
    FlopCounts::Tally *tally, *unknown;
  };
  static bool fits(const BilinearShapes& run, const BilinearShapes& shown) {
    const auto same = [](const auto& ours, const auto& theirs) { return !theirs || ours == theirs; };
    return same(run.a, shown.a) && same(run.b, shown.b) && same(run.output, shown.output);
  }

  static constexpr size_t kMost = 64;  // of different shapes, between a forward run and its backward one
  mutable Mutex mutex_;
  std::vector<Run> runs_;
  std::vector<Waiting> waiting_;
};

}  // namespace amanda::tools
