#include "amanda/lasting.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

namespace amanda {
namespace {

constexpr size_t kStep = 16, kSizes = 64;  // sizes that are taken in batches: multiples of kStep
constexpr size_t kFirstBytes = 2048, kMost = 2048;

struct Free {
  Free* next;
};

/// Blocks of one size that a thread has fetched in advance.
struct Batch {
  Free* first = nullptr;
  size_t count = 0;  // of the next batch

  void fill(size_t size) {
    for (size_t i = 0; i < count; ++i) {
      auto* block = static_cast<Free*>(std::malloc(size));
      if (!block) return;
      block->next = std::exchange(first, block);
    }
    count = std::min(count * 4, kMost);
  }
};

// On a new thread, malloc uses another arena: glibc gives that of a thread that has ended to the next one. If no thread
// can be started, nothing happens. Signals are for the program's own threads.
template <class Fn>
void on_new_thread(const Fn& fn) noexcept {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(fn).join();
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

/// Of one thread.
class Stock {
 public:
  /// Fetches some blocks of each size: starting a thread takes longer than that.
  Stock() {
    on_new_thread([this] {
      for (size_t i = 0; i < kSizes; ++i) {
        batches_[i].count = std::max<size_t>(kFirstBytes / size_of(i), 4);
        batches_[i].fill(size_of(i));
      }
    });
  }

  ~Stock() {
    for (Batch& batch : batches_) {
      while (batch.first) std::free(std::exchange(batch.first, batch.first->next));
    }
    is_over = true;
  }

  void* take(size_t size) noexcept {
    const size_t index = (std::max<size_t>(size, 1) - 1) / kStep;
    if (index >= kSizes) {
      void* block = nullptr;
      on_new_thread([&] { block = std::malloc(size); });
      return block;
    }
    Batch& batch = batches_[index];
    if (!batch.first) on_new_thread([&] { batch.fill(size_of(index)); });
    return batch.first ? std::exchange(batch.first, batch.first->next) : nullptr;
  }

  static thread_local constinit bool is_over;

 private:
  static constexpr size_t size_of(size_t index) { return (index + 1) * kStep; }

  std::array<Batch, kSizes> batches_;
};
thread_local constinit bool Stock::is_over = false;

}  // namespace

int& Lasting::depth() {
  static thread_local constinit int depth = 0;
  return depth;
}

void* take_lasting(size_t size) noexcept {
  if (Stock::is_over) return nullptr;
  const int depth = std::exchange(Lasting::depth(), 0);  // what starts a thread allocates, too
  static thread_local Stock stock;
  void* memory = stock.take(size);
  Lasting::depth() = depth;
  return memory;
}

}  // namespace amanda
