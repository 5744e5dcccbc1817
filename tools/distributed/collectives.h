// The collectives of torch.distributed: the start times, the groups, and the times that the process is inside them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

namespace amanda::tools::pytorch {

/// A collective, as this process has started it.
struct StartedCollective {
  std::string op;     ///< "c10d::allreduce_"
  std::string group;  ///< its name, the same in all ranks
  int64_t time_ns;    ///< of a steady clock: that of Python's time.perf_counter_ns
  /// Start and end of its call, then of each wait for it, on this clock.
  std::vector<std::pair<int64_t, int64_t>> inside;
};

/// Hears of all collectives in the process between `start` and `stop`, also those that the backward passes of DDP and
/// FSDP call, where operators have no routines: by a callback of RecordFunction, which each operator calls meanwhile.
class CollectiveRecorder : public std::enable_shared_from_this<CollectiveRecorder> {
 public:
  /// Calls nest.
  void start();
  void stop();

  /// A reference to a row of `rows`, valid until the next reset.
  struct RowRef {
    size_t resets;
    size_t row;
  };

  RowRef add(StartedCollective collective);
  /// Its call has returned, with this work.
  void returned(RowRef ref, int64_t time_ns, const c10d::Work* work);
  /// A program has waited for this work. Returns false if the work belongs to no known collective, or was waited for
  /// before.
  bool waited(const c10d::Work& work, int64_t start_ns, int64_t end_ns);
  /// An operator has made this work: another one that had its address is gone.
  void forget(const c10d::Work& work);
  /// The collectives in the order in which they were started. Within one group, this is the order in all of its ranks.
  std::vector<StartedCollective> rows() const;
  void reset();

 private:
  mutable std::mutex mutex_;  // guards all members
  std::vector<StartedCollective> rows_;
  std::unordered_map<const c10d::Work*, size_t> works_;  // rows; by address, since a reference would keep tensors
  size_t resets_ = 0;
};

}  // namespace amanda::tools::pytorch
