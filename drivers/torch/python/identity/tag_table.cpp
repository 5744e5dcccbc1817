#include "python/identity/tag_table.h"

#include <mutex>
#include <thread>

namespace amanda::python {

size_t TagTable::Slots::home(const void* object) const {
  return (reinterpret_cast<uint64_t>(object) >> 4) * 0x9E3779B97F4A7C15ull >> (64 - bits);
}

void TagTable::Slots::put(const void* object, uint64_t tag) {
  size_t i = home(object);
  while (slots[i].object.load(std::memory_order_relaxed)) i = next(i);
  slots[i].tag.store(tag, std::memory_order_relaxed);
  slots[i].object.store(object, std::memory_order_relaxed);
}

[[gnu::hot]] uint64_t TagTable::find(const void* object) const {
  while (true) {
    const uint64_t before = changes_.load(std::memory_order_acquire);
    const Slots* table = slots_.load(std::memory_order_acquire);
    if (!table) return 0;
    uint64_t tag = 0;
    size_t i = table->home(object);
    // Bounded, because a concurrent change may hide the end.
    for (size_t looked = 0; looked < table->slots.size(); ++looked, i = table->next(i)) {
      const void* found = table->slots[i].object.load(std::memory_order_relaxed);
      if (found == object) tag = table->slots[i].tag.load(std::memory_order_relaxed);
      if (!found || found == object) break;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && changes_.load(std::memory_order_relaxed) == before) return tag;
    std::this_thread::yield();
  }
}

class TagTable::Change {
 public:
  explicit Change(TagTable& table) : changes_(table.changes_) {
    changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~Change() { changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

 private:
  std::atomic<uint64_t>& changes_;
};

void TagTable::set(const void* object, uint64_t tag) {
  erase(object);
  std::lock_guard lock(mutex_);
  if (all_.empty() || 2 * (size_ + 1) > all_.back()->slots.size()) grow();
  Change change(*this);
  all_.back()->put(object, tag);
  ++size_;
}

uint64_t TagTable::erase(const void* object) {
  std::lock_guard lock(mutex_);
  if (all_.empty()) return 0;
  Slots& table = *all_.back();
  size_t hole = table.home(object);
  while (table.slots[hole].object.load() != object) {
    if (!table.slots[hole].object.load()) return 0;
    hole = table.next(hole);
  }
  const uint64_t tag = table.slots[hole].tag.load();
  Change change(*this);
  --size_;
  // Later entries move up, unless they are in their home slot.
  const size_t mask = table.slots.size() - 1;
  for (size_t i = table.next(hole); table.slots[i].object.load(); i = table.next(i)) {
    const size_t home = table.home(table.slots[i].object.load());
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    table.slots[hole].object.store(table.slots[i].object.load(), std::memory_order_relaxed);
    table.slots[hole].tag.store(table.slots[i].tag.load(), std::memory_order_relaxed);
    hole = i;
  }
  table.slots[hole].object.store(nullptr, std::memory_order_relaxed);
  return tag;
}

void TagTable::grow() {
  constexpr int kFirstBits = 10;
  const Slots* outgrown = all_.empty() ? nullptr : all_.back().get();
  auto made = std::make_unique<Slots>(outgrown ? outgrown->bits + 1 : kFirstBits);
  if (outgrown) {
    for (const Slot& slot : outgrown->slots) {
      if (slot.object.load()) made->put(slot.object.load(), slot.tag.load());
    }
  }
  slots_.store(made.get(), std::memory_order_release);
  all_.push_back(std::move(made));
}

}  // namespace amanda::python
