// PyTorch's allocations on the CPU, counted before they happen.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace amanda::tools::rematerialization {

/// Sets `most` to `value`, if that is more.
inline void raise(std::atomic<size_t>& most, size_t value) {
  size_t now = most;
  while (now < value && !most.compare_exchange_weak(now, value)) {
  }
}

/// Counts the bytes that are alive of those that were allocated under it.
class AllocationCount {
 public:
  virtual ~AllocationCount() = default;
  /// Called before memory is allocated, on the thread that does. May free some.
  virtual void make_room(size_t bytes) = 0;

  void add(size_t bytes) { raise(peak_, live_ += bytes); }
  void subtract(size_t bytes) { live_ -= bytes; }
  size_t live() const { return live_; }
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = live_.load(); }

 private:
  std::atomic<size_t> live_{0}, peak_{0};
};

/// From now on this thread's allocations belong to `count`. Throws `Error` if they belong to another one, or if another
/// library's allocator is in the way.
void start_counting(std::shared_ptr<AllocationCount> count);
/// Ends counting. Memory that was allocated before still counts until it is freed.
void stop_counting();

}  // namespace amanda::tools::rematerialization
