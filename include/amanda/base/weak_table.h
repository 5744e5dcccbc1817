// Objects that are alive, by number.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "amanda/base/mutex.h"

namespace amanda {

/// Finds objects without keeping them alive. On any thread.
template <class T>
class WeakTable {
 public:
  /// Adds an object.
  void add(uint64_t number, const std::shared_ptr<T>& object) {
    std::lock_guard lock(mutex_);
    if (objects_.size() >= next_sweep_) {
      std::erase_if(objects_, [](const auto& known) { return known.second.expired(); });
      next_sweep_ = 2 * objects_.size() + 1024;
    }
    objects_[number] = object;
  }
  /// The object with this number. Null if there is none that is alive.
  std::shared_ptr<T> find(uint64_t number) {
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(number);
    return found == objects_.end() ? nullptr : found->second.lock();
  }

 private:
  Mutex mutex_;
  std::unordered_map<uint64_t, std::weak_ptr<T>> objects_;
  size_t next_sweep_ = 1024;
};

}  // namespace amanda
