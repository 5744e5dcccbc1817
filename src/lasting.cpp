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

// Sizes that are fetched in advance: multiples of 16 bytes up to 1 KiB, and of 1 KiB up to 16.
constexpr size_t kStep = 16, kSmall = 64, kLargeStep = kStep * kSmall, kSizes = kSmall + 15;
constexpr size_t kMostBytes = size_t{1} << 18;

constexpr size_t index_of(size_t size) {
  const size_t steps = (std::max<size_t>(size, 1) - 1) / kStep;
  return steps < kSmall ? steps : kSmall - 1 + (size - 1) / kLargeStep;
}
constexpr size_t size_of(size_t index) {
  return index < kSmall ? (index + 1) * kStep : (index - kSmall + 2) * kLargeStep;
}
// How many a thread fetches at first: what a small model's first run takes. Most blocks are small.
constexpr size_t first_count(size_t index) { return index < 16 ? 96 - 4 * index : index < kSmall ? 8 : 1; }
static_assert(size_of(index_of(1024)) == 1024 && size_of(index_of(1025)) == 2048 && index_of(16384) == kSizes - 1);

struct Free {
  Free* next;
};

/// Blocks of one size that a thread has fetched in advance.
struct Batch {
  Free* first = nullptr;
  size_t count = 0, taken = 0;  // that are here; since the last fetch

  void fetch(size_t size, size_t wanted) {
    for (; count < wanted; ++count) {
      auto* block = static_cast<Free*>(std::malloc(size));
      if (!block) return;
      block->next = std::exchange(first, block);
    }
  }
  void* take() {
    ++taken;
    --count;
    return std::exchange(first, first->next);
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

/// Of one thread. Starting a thread takes longer than fetching many blocks, so the one that is started for a block
/// fetches others, too: of each size twice as many as were taken since the last time, and as many as at first.
class Stock {
 public:
  Stock() {
    on_new_thread([this] {
      for (size_t i = 0; i < kSizes; ++i) batches_[i].fetch(size_of(i), first_count(i));
    });
  }

  ~Stock() {
    for (Batch& batch : batches_) {
      while (batch.first) std::free(std::exchange(batch.first, batch.first->next));
    }
    is_over = true;
  }

  void* take(size_t size) noexcept {
    const size_t index = index_of(size);
    if (index >= kSizes) {
      void* block = nullptr;
      on_new_thread([&] {
        block = std::malloc(size);
        refill();
      });
      return block;
    }
    Batch& batch = batches_[index];
    if (!batch.first) {
      on_new_thread([&] {
        batch.fetch(size_of(index), 1);
        refill();
      });
    }
    return batch.first ? batch.take() : nullptr;
  }

  static thread_local constinit bool is_over;

 private:
  void refill() {
    for (size_t i = 0; i < kSizes; ++i) {
      const size_t taken = std::exchange(batches_[i].taken, 0);
      batches_[i].fetch(size_of(i), std::max(first_count(i), std::min(2 * taken, kMostBytes / size_of(i))));
    }
  }

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
