#include "record_table.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>

#include "amanda/scope_options.h"
#include "generation.h"

namespace amanda {

RecordPtr RecordTable::get(RecordKey key, const std::function<RecordPtr()>& make) {
  if (RecordPtr known = find(key)) return known;
  RecordPtr made = make();  // outside the lock: it may copy a binding's keys
  if (key.id == 0) return made;
  RecordPtr evicted;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  auto [known, added] = records_.try_emplace(key, made);
  if (!added) return known->second;
  made->number = ++numbered_;
  queue_for_eviction(key);
  if (evictable_.size() > kMaxEmptyRecords) evicted = evict_unused();
  return made;
}

// CLOCK, an approximation of least recently used: a record that was looked up since the hand last passed it stays for
// another round. A cache hit looks up no record, so plans are merged again twice a round: this looks up the records in
// use, and adds no cost to hits.
void RecordTable::queue_for_eviction(RecordKey key) {
  evictable_.push_back(key);
  if (++queued_ % (kMaxEmptyRecords / 2) == 0) plans_changed();
}

RecordPtr RecordTable::evict_unused() {
  while (evictable_.size() > kMaxEmptyRecords) {
    const RecordKey key = evictable_.front();
    evictable_.pop_front();
    auto found = records_.find(key);
    if (found == records_.end()) continue;  // cleared
    Record& record = *found->second;
    if (std::exchange(record.used, false) || record.analysed_by != std::thread::id{}) {
      queue_for_eviction(key);
    } else if (record.is_empty()) {
      RecordPtr evicted = std::move(found->second);
      records_.erase(found);
      return evicted;
    }
  }
  return nullptr;
}

RecordPtr RecordTable::find(RecordKey key) {
  std::lock_guard lock(mutex_);
  auto found = records_.find(key);
  if (found == records_.end()) return nullptr;
  found->second->used = true;
  return found->second;
}

void RecordTable::each(const std::function<void(Record&)>& fn) {
  std::lock_guard lock(mutex_);
  for (auto& [key, record] : records_) fn(*record);
}

RecordTable::Records RecordTable::take(OpId id) {
  Records taken;
  std::lock_guard lock(mutex_);
  if (id == 0) {
    taken.swap(records_);
    evictable_.clear();
    places_.clear();
    return taken;
  }
  for (auto it = records_.begin(); it != records_.end();) {  // its backward operators' records too
    auto next = std::next(it);
    if (it->first.id == id || it->second->context.op_id() == id) taken.insert(records_.extract(it));
    it = next;
  }
  return taken;
}

size_t RecordTable::size() {
  std::lock_guard lock(mutex_);
  return records_.size();
}

void RecordTable::note_place(const OpInfo& type) {
  std::lock_guard lock(mutex_);
  ++places_[&type];
}

std::vector<std::pair<std::string, size_t>> RecordTable::analysed_types() {
  std::map<std::string, size_t> by_name;  // all overloads
  {
    std::lock_guard lock(mutex_);
    for (const auto& [type, places] : places_) by_name[type->ns + "::" + type->name] += places;
  }
  std::vector<std::pair<std::string, size_t>> types(by_name.begin(), by_name.end());
  std::stable_sort(types.begin(), types.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return types;
}

// A forked child has one thread: no other thread analyzes or waits there.
void RecordTable::after_fork(void* table) {
  auto& self = *static_cast<RecordTable*>(table);
  new (&self.analysed_) std::condition_variable;
  for (auto& [key, record] : self.records_) {
    if (record->analysed_by != std::this_thread::get_id()) record->analysed_by = {};
  }
}

}  // namespace amanda
