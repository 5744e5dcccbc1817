// A mutex that is free in a forked child.
#pragma once

#include <mutex>

#include "amanda/base/no_copy.h"

namespace amanda {

/// A mutex that is free in a forked child.
///
/// A fork waits until no thread holds any Mutex, and holds all of them while the process is copied. So the child, which
/// has only the forking thread, finds each of them free and the data it guards consistent. Hold one only briefly, and
/// call nothing meanwhile that may wait for the interpreter lock.
class Mutex : NoCopy {
 public:
  /// `in_child`: called with `owner` in a forked child, before anything else there can lock this mutex.
  explicit Mutex(void (*in_child)(void*) = nullptr, void* owner = nullptr);
  ~Mutex();

  /// Waits for the mutex and holds it.
  void lock() { mutex_.lock(); }
  /// Holds the mutex if it is free. Returns false if it is not free.
  bool try_lock() { return mutex_.try_lock(); }
  /// Releases the mutex; on the thread that holds it.
  void unlock() { mutex_.unlock(); }
  /// For condition variables: the mutex inside.
  std::mutex& native() { return mutex_; }
  /// True on a thread that forks, as long as it holds every Mutex: in handlers of the fork.
  static bool all_held_here();

 private:
  friend struct MutexesAtFork;
  std::mutex mutex_;
  void (*const in_child_)(void*);
  void* const owner_;
  Mutex *previous_ = nullptr, *next_ = nullptr;  // in the list of all
};

}  // namespace amanda
