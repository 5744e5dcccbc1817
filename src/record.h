// The record of one operator in one scope: what the analyses of the scope's tools left behind.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "amanda/op_context.h"
#include "scheduled_action.h"

namespace amanda {

struct ContextSession;

/// The context that tools share, and the actions that each analysis scheduled.
///
/// Its inside is guarded by RecordTable::mutex(). The context's keys belong to the thread in `analysed_by`.
struct Record {
  struct PerRegistration {
    bool done = false;
    bool saw_symbols = false;  // analyzed with a graph's symbols: an eager call is analyzed again
    std::vector<ScheduledPtr> actions;

    bool holds(bool symbols) const { return done && (symbols || !saw_symbols); }
  };

  ~Record();  // retires the routines
  PerRegistration& of(const Tool* tool, size_t registration);
  bool is_empty() const;  // no action, no key: safe to evict
  /// In the order in which they run, without those that were removed; `order`: of the tools; `running`: an analysis
  /// whose results are not stored yet. Under the lock: a record that goes removes its actions one by one.
  std::vector<ScheduledPtr> scheduled(const std::vector<Tool*>& order, const ContextSession* running = nullptr) const;

  OpContext context;
  std::map<const Tool*, std::vector<PerRegistration>> tools;
  std::thread::id analysed_by;  // while an analysis runs
  bool used = false;            // looked up since it was last considered for eviction
  uint64_t number = 0;          // counts the scope's records
};
using RecordPtr = std::shared_ptr<Record>;

/// Two drivers may use the same id for different operators; two regimes of one framework share ids.
struct RecordKey {
  size_t ids;  // Backend::ids()
  OpId id;
  bool operator==(const RecordKey&) const = default;
};
struct RecordKeyHash {
  size_t operator()(const RecordKey& key) const { return key.id + key.ids; }
};

}  // namespace amanda
