// The records of a scope: one for each operator that its tools analyzed.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "amanda/base/mutex.h"
#include "record.h"

namespace amanda {

/// Keeps all records with actions or keys, and at most kMaxEmptyRecords others. On any thread.
class RecordTable {
 public:
  using Records = std::unordered_map<RecordKey, RecordPtr, RecordKeyHash>;

  /// The record of an operator; `make` creates a missing one, outside the lock. One without an id is not kept.
  RecordPtr get(RecordKey key, const std::function<RecordPtr()>& make);
  RecordPtr find(RecordKey key);
  /// Calls `fn` on each record, under the lock.
  void each(const std::function<void(Record&)>& fn);
  /// Takes out the records of an operator and its backward operators, of every driver; or (0) all, with the numbers of
  /// places. Destroy them outside all locks: they hold a binding's objects.
  [[nodiscard]] Records take(OpId id);
  size_t size();

  /// Guards the inside of all records. Never held while a callback runs.
  Mutex& mutex() { return mutex_; }
  /// Notified when an analysis ends.
  std::condition_variable& analysed() { return analysed_; }

  /// A place of a forward operator of this type is analyzed for the first time.
  void note_place(const OpInfo& type);
  /// The numbers of places by type, all overloads as one; most first.
  std::vector<std::pair<std::string, size_t>> analysed_types();

 private:
  void queue_for_eviction(RecordKey key);
  RecordPtr evict_unused();
  static void after_fork(void* table);

  Mutex mutex_{&after_fork, this};
  std::condition_variable analysed_;
  Records records_;
  /// Records in the order in which they are considered for eviction. A record that is no longer empty at that time
  /// leaves the queue.
  std::deque<RecordKey> evictable_;
  size_t queued_ = 0;      // in total, ever
  uint64_t numbered_ = 0;  // records, ever
  std::map<const OpInfo*, size_t> places_;
};

}  // namespace amanda
