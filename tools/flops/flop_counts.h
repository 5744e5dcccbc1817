// The counts of Flops: runs and operations, per operator type and module.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "amanda/base/mutex.h"

namespace amanda::tools {

/// The counts so far. May be read on any thread while operators run.
class FlopCounts {
 public:
  /// All runs of one operator type in one module.
  struct Row {
    std::string op;           ///< "aten::addmm"; a backward operator's is the autograd node's: "AddmmBackward0"
    std::string module_path;  ///< the innermost module, in backward the forward operator's; "" outside modules
    bool backward;            ///< in the backward pass
    int64_t runs;             ///< the number of runs
    int64_t flops;            ///< floating point operations of all runs
  };
  /// All rows, by operator and module.
  std::vector<Row> rows() const;

  /// The operations of all rows.
  int64_t total() const;
  /// The operations of each operator type.
  std::map<std::string, int64_t> by_operator() const;
  /// The operations of each module with the modules inside it; "" is the total.
  std::map<std::string, int64_t> by_module() const;
  /// The number of runs of operators without a formula, by type. Views are not listed.
  std::map<std::string, int64_t> uncounted() const;
  /// The same for operators that multiply, or that are not PyTorch's own, so that it is not known whether they do.
  std::map<std::string, int64_t> uncounted_products() const;
  /// Sets everything to zero.
  void reset();

  /// The runs of one operator type in one module.
  class Tally {
   public:
    /// Adds one run. On any thread.
    void add(int64_t flops) {
      runs_.fetch_add(1, std::memory_order_relaxed);
      flops_.fetch_add(flops, std::memory_order_relaxed);
    }

    /// Removes a run of no operations. On any thread.
    void take_back() { runs_.fetch_sub(1, std::memory_order_relaxed); }

   private:
    friend class FlopCounts;
    std::atomic<int64_t> runs_{0}, flops_{0};
    std::atomic<bool> may_multiply_{false};
  };
  /// The tally of that type in that module; valid as long as this object.
  Tally& tally(const std::string& op, const std::string& module_path, bool backward);
  /// The tally of a type without a formula; valid as long as this object.
  Tally& uncounted_tally(const std::string& op, bool may_multiply);

 private:
  mutable Mutex mutex_;  // of the maps
  std::map<std::tuple<std::string, std::string, bool>, Tally> tallies_;
  std::map<std::string, Tally> uncounted_;
};

}  // namespace amanda::tools
