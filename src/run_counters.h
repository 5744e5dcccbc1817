// The run counters of the operators in a scope.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>

#include "amanda/base/mutex.h"
#include "record.h"
#include "run_counter.h"

namespace amanda {

/// They outlive the records, because a count goes on after cache_clear(). On any thread.
class RunCounters {
 public:
  /// The counter of the forward operator with this key. Without an id, it belongs to one execution.
  std::shared_ptr<RunCounter> get(RecordKey key);

 private:
  Mutex mutex_;
  std::unordered_map<RecordKey, std::shared_ptr<RunCounter>, RecordKeyHash> counters_;
  size_t next_sweep_ = 1024;
};

}  // namespace amanda
