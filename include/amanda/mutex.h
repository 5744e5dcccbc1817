// A mutex that is free in a forked child.
#pragma once

#include <mutex>

namespace amanda {

/// A fork waits until nobody holds one of these, and holds them all while the process is copied: a child, which has the
/// forking thread only, finds each of them free, and whole what it guards. Hold one for a moment, and call nothing
/// inside that may wait for the interpreter lock.
class Mutex {
 public:
  /// `in_child`: called with `owner` in a forked child, before anything else there can lock this mutex.
  explicit Mutex(void (*in_child)(void*) = nullptr, void* owner = nullptr);
  ~Mutex();
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }  // for condition variables

 private:
  friend struct MutexesAtFork;
  std::mutex mutex_;
  void (*const in_child_)(void*);
  void* const owner_;
  Mutex *previous_ = nullptr, *next_ = nullptr;  // in the list of all
};

}  // namespace amanda
