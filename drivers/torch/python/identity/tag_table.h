// A table of numbers by address that is read without a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "amanda/base/mutex.h"

namespace amanda::python {

/// Tags of objects by address: read without a lock and without the interpreter lock, while other threads write. A
/// seqlock over an open-addressing hash table without tombstones: each operator looks up each operand, in 11 ns; a
/// mutex around a map takes 28.
class TagTable {
 public:
  /// The object's tag, or 0 if it has none.
  uint64_t find(const void* object) const;
  void set(const void* object, uint64_t tag);
  uint64_t erase(const void* object);  // returns the tag it had

 private:
  struct Slot {
    std::atomic<const void*> object{nullptr};
    std::atomic<uint64_t> tag{0};
  };
  struct Slots {
    explicit Slots(int bits) : bits(bits), slots(size_t{1} << bits) {}
    size_t home(const void* object) const;
    size_t next(size_t i) const { return (i + 1) & (slots.size() - 1); }
    void put(const void* object, uint64_t tag);

    int bits;
    std::vector<Slot> slots;
  };
  class Change;
  void grow();

  Mutex mutex_;                         // writers
  std::atomic<uint64_t> changes_{0};    // odd: a change is in progress
  std::atomic<Slots*> slots_{nullptr};  // the last of all_
  /// Readers may still use an outgrown table; together these are no larger than the current one.
  std::vector<std::unique_ptr<Slots>> all_;
  size_t size_ = 0;
};

}  // namespace amanda::python
