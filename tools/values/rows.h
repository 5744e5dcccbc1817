// The findings of a recorder, operator by operator.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "amanda/base/mutex.h"
#include "amanda/driver/backend.h"
#include "clock.h"

namespace amanda::tools::pytorch {

/// All runs of one operator. `Found`: the findings about them; it can be copied, and begins empty.
template <class Found>
struct Row {
  OpId id;
  int64_t first_ns;  // of the first run, on now_ns()
  Found found{};
};

/// May be used on any thread.
template <class Found>
class Rows {
 public:
  /// Calls `add(Found&)` with that of the operator, one thread at a time.
  template <class Add>
  void update(OpId id, const Add& add) {
    std::lock_guard lock(mutex_);
    auto at = rows_.find(id);
    if (at == rows_.end()) at = rows_.emplace(id, Row<Found>{id, now_ns()}).first;
    add(at->second.found);
  }

  std::vector<Row<Found>> all() const {
    std::lock_guard lock(mutex_);
    std::vector<Row<Found>> all;
    for (const auto& [id, row] : rows_) all.push_back(row);
    return all;
  }

  void clear() {
    std::lock_guard lock(mutex_);
    rows_.clear();
  }

 private:
  mutable Mutex mutex_;
  std::map<OpId, Row<Found>> rows_;
};

}  // namespace amanda::tools::pytorch
