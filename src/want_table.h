// The tools that ask for each operator type of one backend.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "amanda/base/mutex.h"
#include "amanda/driver/backend.h"
#include "visibility.h"

namespace amanda {

/// Filled in when a type first occurs, and read without a lock at each operator call.
class WantTable {
 public:
  struct Wants {
    ToolBits outer = 0, nested = 0;
  };
  ~WantTable() {
    for (auto& chunk : chunks_) delete chunk.load();
  }
  template <class Compute>
  Wants get(OpType type, const Compute& compute);

 private:
  static constexpr size_t kChunk = 512, kChunks = 64;
  struct Cell {
    std::atomic<bool> known{false};
    Wants wants;
  };
  using Chunk = std::array<Cell, kChunk>;
  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
  Mutex mutex_;
};

template <class Compute>
WantTable::Wants WantTable::get(OpType type, const Compute& compute) {
  if (type >= kChunk * kChunks) return compute();  // more types than any framework has
  auto& slot = chunks_[type / kChunk];
  Chunk* chunk = slot.load(std::memory_order_acquire);
  if (chunk) {
    const Cell& cell = (*chunk)[type % kChunk];
    if (cell.known.load(std::memory_order_acquire)) return cell.wants;
  }
  const Wants wants = compute();
  std::lock_guard lock(mutex_);
  chunk = slot.load();
  if (!chunk) slot.store(chunk = new Chunk, std::memory_order_release);
  Cell& cell = (*chunk)[type % kChunk];
  if (!cell.known.load()) {
    cell.wants = wants;
    cell.known.store(true, std::memory_order_release);
  }
  return wants;
}

}  // namespace amanda
