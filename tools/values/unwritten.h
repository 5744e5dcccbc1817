// Memory that has no values yet: allocated by an operator such as aten::empty, and not written by one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include "amanda/action.h"
#include "amanda/base/mutex.h"

namespace amanda::tools::pytorch {

/// The bytes of a memory that are written, as intervals that do not touch.
class WrittenBytes {
 public:
  void add(int64_t begin, int64_t end);
  bool has(int64_t begin, int64_t end) const;
  size_t intervals() const { return ends_.size(); }

 private:
  std::map<int64_t, int64_t> ends_;  // by their begins
};

/// The live storages that have bytes without values. May be used on any thread.
///
/// A storage is recognised as in NOTE: [recognising a tensor], graph/storages.h. Writes that call no operator are not
/// seen. Where there may be one, the memory counts as written: NumPy has an array of it, or a version counter has
/// moved.
class UnwrittenMemory {
 public:
  /// Memory without values.
  struct Unwritten {
    OpId allocated_by;
    bool in_part;  ///< operators have written to some of it
  };

  /// `by` has allocated the tensor's memory.
  void allocate(const at::Tensor& tensor, OpId by);
  /// The tensor's memory has values, and may grow; the added memory then has none.
  void grow(const at::Tensor& tensor, OpId by);
  /// An operator has written all elements of the tensor.
  void write(const at::Tensor& tensor);
  /// An operator has written some elements, and it is not known which.
  void write_some(const at::Tensor& tensor);
  /// The same; `marks`, booleans on the CPU, is true for these elements.
  void write_marked(const at::Tensor& tensor, const at::Tensor& marks);
  /// `to` has the elements of `from`.
  void copy(const at::Tensor& from, const at::Tensor& to);
  /// The memory without values that the tensor reads. Empty if all elements of the tensor have values, as far as is
  /// known.
  std::optional<Unwritten> find(const at::Tensor& tensor);
  /// The same as find(), for any tensor of an operand.
  bool has(const c10::IValue& operand);
  bool is_empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  void clear();

 private:
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    OpId allocated_by;
    uint32_t version;  // of its version counter, when this was last looked at
    bool in_part = false;
    WrittenBytes written{};
  };
  using Memories = std::unordered_map<const c10::StorageImpl*, Memory>;
  Memory* known(const at::Tensor& tensor);
  std::optional<Unwritten> find_here(const at::Tensor& tensor);
  void allocate_here(const at::Tensor& tensor, OpId by, size_t written);
  void write_here(const at::Tensor& tensor);
  void note_write(Memory& memory, const at::Tensor& tensor);
  void drop(const Memory& memory);
  void drop_if_written(const Memory& memory, const at::Tensor& tensor);
  void drop_dead();

  std::atomic<size_t> count_ = 0;  // of memories_
  Mutex mutex_;                    // guards the members below
  Memories memories_;
  size_t limit_ = 256;
};

}  // namespace amanda::tools::pytorch
