#include "amanda/base/pool.h"

#include <sys/mman.h>

#include <array>
#include <mutex>
#include <utility>

#include "amanda/base/mutex.h"

namespace amanda {
namespace {

constexpr size_t kStep = 32, kSizes = 48;  // block sizes: multiples of kStep
constexpr size_t kPage = 4096, kPages = 64;
constexpr size_t kMostHere = 256;  // free blocks of one size that a thread keeps for itself

struct Block {
  Block* next;
};

struct FreeList {
  Block* first = nullptr;
  size_t count = 0;

  void push(Block* block) {
    block->next = std::exchange(first, block);
    ++count;
  }
  Block* pop() {
    --count;
    return std::exchange(first, first->next);
  }
};
using FreeLists = std::array<FreeList, kSizes>;

/// The blocks and pages that no thread has taken.
class Shared {
 public:
  static Shared& get() {
    static auto* shared = new Shared;  // leaked: threads may outlive static objects
    return *shared;
  }

  /// Adds some blocks to an empty list.
  void fill(FreeList& list, size_t index) {
    std::lock_guard lock(mutex_);
    FreeList& spare = spare_[index];
    while (spare.first && list.count < kMostHere / 2) list.push(spare.pop());
    if (list.first) return;
    const size_t size = (index + 1) * kStep;
    std::byte* page = next_page();
    for (size_t at = kPage / size; at-- > 0;) list.push(reinterpret_cast<Block*>(page + at * size));
  }

  void put_back(FreeList& list, size_t index, size_t count) {
    std::lock_guard lock(mutex_);
    while (count-- > 0) spare_[index].push(list.pop());
  }

 private:
  std::byte* next_page() {
    if (left_ == 0) {
      void* pages = mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pages == MAP_FAILED) throw std::bad_alloc();
      next_ = static_cast<std::byte*>(pages);
      left_ = kPages;
    }
    --left_;
    return std::exchange(next_, next_ + kPage);
  }

  Mutex mutex_;
  FreeLists spare_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

struct Here {
  FreeLists lists;
  bool keeps = false;  // freed blocks are kept: from the first use until the thread ends
  bool is_ending = false;
};
thread_local constinit Here here;  // has no destructor: those of other thread-local objects may still free blocks

Here& lists_of_thread() {
  Here* mine = &here;
  asm("" : "+r"(mine));  // g++ finds the address again for each member otherwise, by a call
  return *mine;
}

void begin_to_keep(Here& mine) {
  struct Owner {
    ~Owner() {
      here.keeps = false;
      here.is_ending = true;
      for (size_t i = 0; i < kSizes; ++i) Shared::get().put_back(here.lists[i], i, here.lists[i].count);
    }
  };
  if (mine.keeps || mine.is_ending) return;
  mine.keeps = true;
  static thread_local const Owner owner;
}

size_t index_of(size_t size) { return (size + kStep - 1) / kStep - 1; }

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kPooled = false;  // the sanitizer must see each object
#else
constexpr bool kPooled = true;
#endif

}  // namespace

namespace {

[[gnu::cold, gnu::noinline]] void* take_new_block(Here& thread, size_t index) {
  begin_to_keep(thread);
  FreeList& list = thread.lists[index];
  Shared::get().fill(list, index);
  Block* const block = list.pop();
  if (!thread.keeps) Shared::get().put_back(list, index, list.count);
  return block;
}

[[gnu::cold, gnu::noinline]] void give_one_more(Here& thread, Block* block, size_t index) noexcept {
  begin_to_keep(thread);
  FreeList& list = thread.lists[index];
  list.push(block);
  if (!thread.keeps) return Shared::get().put_back(list, index, list.count);
  if (list.count > kMostHere) Shared::get().put_back(list, index, kMostHere / 2);
}

}  // namespace

void* take_block(size_t size) {
  const size_t index = index_of(size);
  if (!kPooled || index >= kSizes) return ::operator new(size);
  Here& thread = lists_of_thread();
  FreeList& list = thread.lists[index];
  return list.first ? list.pop() : take_new_block(thread, index);
}

void give_block(void* block, size_t size) noexcept {
  const size_t index = index_of(size);
  if (!kPooled || index >= kSizes) return ::operator delete(block);
  Here& thread = lists_of_thread();
  FreeList& list = thread.lists[index];
  if (!thread.keeps || list.count >= kMostHere) return give_one_more(thread, static_cast<Block*>(block), index);
  list.push(static_cast<Block*>(block));
}

}  // namespace amanda
