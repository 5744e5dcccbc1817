// When the collectives of torch.distributed are started: in which group, and on which thread whatsoever.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace amanda::tools::pytorch {

/// A collective, as this process has started it.
struct StartedCollective {
  std::string op;     ///< "c10d::allreduce_"
  std::string group;  ///< its name, the same in all ranks
  int64_t time_ns;    ///< of a steady clock: that of Python's time.perf_counter_ns
};

/// Hears of all collectives in the process between `start` and `stop`, also those that the backward passes of DDP and
/// FSDP call, where operators have no routines: by a callback of RecordFunction, which each operator calls meanwhile.
class CollectiveRecorder : public std::enable_shared_from_this<CollectiveRecorder> {
 public:
  /// Calls nest.
  void start();
  void stop();

  void add(StartedCollective collective);
  /// In the order in which they were started. Of one group, this is the order in all of its ranks.
  std::vector<StartedCollective> rows() const;
  void reset();

 private:
  mutable std::mutex mutex_;  // guards `rows_`
  std::vector<StartedCollective> rows_;
};

}  // namespace amanda::tools::pytorch
