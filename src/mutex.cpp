#include "amanda/base/mutex.h"

#include <pthread.h>

#include <chrono>
#include <new>
#include <thread>
#include <utility>

namespace amanda {

/// All mutexes, and the steps of a fork with them.
struct MutexesAtFork {
  static bool holds_all() { return locked; }
  static MutexesAtFork& get() {
    static auto* all = new MutexesAtFork;  // leaked: there are mutexes in other static objects
    return *all;
  }

  // A thread may hold one mutex and wait for another, so locking all of them in any fixed order could deadlock. So none
  // is held while waiting for another.
  void prepare() {
    constexpr auto kLongest = std::chrono::seconds(5);  // a thread that holds one longer waits for this thread
    const auto start = std::chrono::steady_clock::now();
    size_t tries = 0;
    while (!try_lock_all()) {
      if (std::chrono::steady_clock::now() - start > kLongest) return;
      // Mostly spinning: a thread that locks a mutex repeatedly leaves it free for less time than a sleep takes.
      if (++tries % 1000 == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    locked = true;
  }

  void parent() {
    if (!std::exchange(locked, false)) return;
    for (Mutex* one = first_; one; one = one->next_) one->mutex_.unlock();
    list_.unlock();
  }

  void child() {
    if (std::exchange(locked, false)) {
      for (Mutex* one = first_; one; one = one->next_) one->mutex_.unlock();
      list_.unlock();
    } else {  // the threads that hold them do not exist here
      new (&list_) std::mutex;
      for (Mutex* one = first_; one; one = one->next_) new (&one->mutex_) std::mutex;
    }
    for (Mutex* one = first_; one; one = one->next_) {
      if (one->in_child_) one->in_child_(one->owner_);
    }
  }

  void add(Mutex& one) {
    std::lock_guard lock(list_);
    one.next_ = first_;
    if (first_) first_->previous_ = &one;
    first_ = &one;
  }

  void remove(Mutex& one) {
    std::lock_guard lock(list_);
    (one.previous_ ? one.previous_->next_ : first_) = one.next_;
    if (one.next_) one.next_->previous_ = one.previous_;
  }

 private:
  MutexesAtFork() {
    pthread_atfork([] { get().prepare(); }, [] { get().parent(); }, [] { get().child(); });
  }

  bool try_lock_all() {
    if (!list_.try_lock()) return false;
    for (Mutex* one = first_; one; one = one->next_) {
      if (one->mutex_.try_lock()) continue;
      for (Mutex* held = first_; held != one; held = held->next_) held->mutex_.unlock();
      list_.unlock();
      return false;
    }
    return true;
  }

  std::mutex list_;  // guards the list; mutexes may be created and destroyed while another is held
  Mutex* first_ = nullptr;
  static thread_local bool locked;  // by this thread, which forks
};

thread_local bool MutexesAtFork::locked = false;

Mutex::Mutex(void (*in_child)(void*), void* owner) : in_child_(in_child), owner_(owner) {
  MutexesAtFork::get().add(*this);
}
Mutex::~Mutex() { MutexesAtFork::get().remove(*this); }

bool Mutex::all_held_here() { return MutexesAtFork::holds_all(); }

}  // namespace amanda
