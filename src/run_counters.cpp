#include "run_counters.h"

#include <mutex>

#include "amanda/scope_options.h"

namespace amanda {

std::shared_ptr<RunCounter> RunCounters::get(RecordKey key) {
  if (key.id == 0) return std::make_shared<RunCounter>();
  std::lock_guard lock(mutex_);
  if (counters_.size() >= next_sweep_) {  // those that no action holds: an analysis was expected, and asked for no run
    std::erase_if(counters_, [](const auto& known) { return known.second.use_count() == 1; });
    next_sweep_ = 2 * counters_.size() + kMaxEmptyRecords;
  }
  std::shared_ptr<RunCounter>& counter = counters_[key];
  if (!counter) counter = std::make_shared<RunCounter>();
  return counter;
}

}  // namespace amanda
