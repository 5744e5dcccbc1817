// The runs that one thread has finished and that were not collected yet.
#pragma once

#include <atomic>
#include <cstdint>

#include "cupti_profiler/operator_tree.h"

namespace amanda::tools {

/// One run, for a trace. Times are the steady clock's, in nanoseconds.
struct RunEvent {
  uint64_t run;          ///< run_id()
  uint32_t node;         ///< in the operator tree
  uint32_t thread;       ///< the system's number
  int64_t start_ns;      ///< before the operator
  int64_t end_ns;        ///< after it
  RunMeasures measures;  ///< what it measured
};

/// The runs that one thread has finished and that were not collected yet. That thread adds; any thread may take, one
/// at a time. Neither waits for the other.
class RunBuffer {
 public:
  /// A run and its node.
  struct Run {
    OperatorTree::Node* node;  ///< lives as long as the tree
    RunEvent event;            ///< what it measured
  };

  /// Adds a run. Returns false if there is no room until runs are taken.
  bool add(const Run& run) {
    const uint32_t added = added_.load(std::memory_order_relaxed);
    if (added - taken_.load(std::memory_order_acquire) == kRoom) return false;
    runs_[added % kRoom] = run;
    added_.store(added + 1, std::memory_order_release);
    return true;
  }

  /// Calls `fn` with each run, in order, and forgets it.
  template <class Fn>
  void take(const Fn& fn) {
    const uint32_t added = added_.load(std::memory_order_acquire);
    for (uint32_t taken = taken_.load(std::memory_order_relaxed); taken != added; ++taken) fn(runs_[taken % kRoom]);
    taken_.store(added, std::memory_order_release);
  }

 private:
  static constexpr uint32_t kRoom = 64;  // few enough to stay in the processor's first cache

  std::atomic<uint32_t> added_{0}, taken_{0};
  Run runs_[kRoom];
};

}  // namespace amanda::tools
