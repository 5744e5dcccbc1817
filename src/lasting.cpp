#include "amanda/base/lasting.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace amanda {
namespace {

// Sizes that are fetched in advance: multiples of 16 bytes. Larger blocks are rare, and come from the thread's own
// arena.
constexpr size_t kStep = 16, kSizes = 32, kLargest = kStep * kSizes;

constexpr size_t index_of(size_t size) { return (std::max<size_t>(size, 1) - 1) / kStep; }
constexpr size_t size_of(size_t index) { return (index + 1) * kStep; }

// The number of blocks of each size that a thread fetches at first: about as many as twenty operators keep.
constexpr std::array<size_t, 16> kFirst = {128, 256, 192, 64, 96, 96, 48, 48, 64, 32, 32, 32, 16, 24, 16, 16};
constexpr size_t first_count(size_t index) { return index < kFirst.size() ? kFirst[index] : 2; }
constexpr size_t kMostBytes = 32 << 10;  // of one size at once: less than glibc's threshold for giving memory back

/// Blocks of one size that a thread has fetched in advance. Taking a block does not read it: it is in another core's
/// cache.
struct Batch {
  std::vector<void*> blocks;
  size_t taken = 0;  // since the last fetch

  void fetch(size_t size) {
    constexpr size_t kHead = 16;
    const size_t wanted = std::min(2 * std::exchange(taken, 0), kMostBytes / size);
    if (blocks.size() >= wanted) return;
    blocks.reserve(wanted);
    // Extends the arena at once: malloc would do it page by page.
    void* volatile ahead = std::malloc((wanted - blocks.size()) * (size + kHead));
    std::free(ahead);
    while (blocks.size() < wanted) {
      void* block = std::malloc(size);
      if (!block) return;
      blocks.push_back(block);
    }
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

/// The blocks of one thread. Starting a thread takes longer than fetching many blocks. So the thread that is started
/// for a block fetches others, too: twice as many of each size as this thread took since the previous fetch.
class Stock {
 public:
  Stock() {
    for (size_t i = 0; i < kSizes; ++i) batches_[i].taken = first_count(i) / 2;
    fetch();
  }

  ~Stock() {
    for (const Batch& batch : batches_) std::for_each(batch.blocks.begin(), batch.blocks.end(), std::free);
  }

  void* take(size_t size) {
    Batch& batch = batches_[index_of(size)];
    ++batch.taken;
    if (batch.blocks.empty()) fetch();
    if (batch.blocks.empty()) return nullptr;
    void* block = batch.blocks.back();
    batch.blocks.pop_back();
    return block;
  }

 private:
  void fetch() {
    on_new_thread([this]() noexcept {
      try {
        for (size_t i = 0; i < kSizes; ++i) batches_[i].fetch(size_of(i));
      } catch (const std::bad_alloc&) {
      }
    });
  }

  std::array<Batch, kSizes> batches_;
};

struct State {
  int depth = 0;
  Stock* stock = nullptr;
  bool is_over = false;  // the thread ends
};
thread_local constinit State state;

Stock* make_stock(State& thread) {
  struct Owner {
    State& thread;
    Stock stock;
    ~Owner() {
      thread.stock = nullptr;
      thread.is_over = true;
    }
  };
  static thread_local Owner owner{.thread = thread, .stock = {}};
  return thread.stock = &owner.stock;
}

}  // namespace

int& Lasting::depth() { return state.depth; }

void* take_lasting(size_t size) noexcept {
  State& thread = state;
  if (size > kLargest || thread.is_over) return nullptr;
  const int depth = std::exchange(thread.depth, 0);  // starting a thread allocates, too
  Stock* stock = thread.stock ? thread.stock : make_stock(thread);
  void* memory = stock->take(size);
  thread.depth = depth;
  return memory;
}

}  // namespace amanda
