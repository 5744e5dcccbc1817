#include "amanda/mutex.h"

#include <pthread.h>

#include <chrono>
#include <new>
#include <thread>
#include <utility>

namespace amanda {

/// All mutexes there are, and what a fork does with them.
struct MutexesAtFork {
  static MutexesAtFork& get() {
    static auto* all = new MutexesAtFork;  // leaked: there are mutexes in other static objects
    return *all;
  }

  // Some thread may hold one mutex and wait for another: in whatever order all are locked, that could wait for ever.
  // So none is held while another is waited for.
  void prepare() {
    constexpr auto kLongest = std::chrono::seconds(5);  // nobody holds one as long, unless it waits for this thread
    const auto start = std::chrono::steady_clock::now();
    size_t tries = 0;
    while (!try_lock_all()) {
      if (std::chrono::steady_clock::now() - start > kLongest) return;
      // Mostly spinning: a thread that takes a mutex again and again leaves it free for less than a sleep.
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
    } else {  // who holds them is not here
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

  std::mutex list_;  // guards the list; a mutex may be made or destroyed while another one is held
  Mutex* first_ = nullptr;
  static thread_local bool locked;  // by this thread, which forks
};

thread_local bool MutexesAtFork::locked = false;

Mutex::Mutex(void (*in_child)(void*), void* owner) : in_child_(in_child), owner_(owner) {
  MutexesAtFork::get().add(*this);
}
Mutex::~Mutex() { MutexesAtFork::get().remove(*this); }

}  // namespace amanda
