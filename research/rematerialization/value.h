// The tool's knowledge of a program's values.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "rematerialization/site.h"

namespace amanda::tools::rematerialization {

struct Call;

/// Memory that stays: evicted values are computed from it, and no call makes it again.
struct Pin {
  c10::Storage memory;
};

/// The contents of a storage, from the time when an operator or other code made them until they are changed in place.
struct Value {
  c10::weak_intrusive_ptr<c10::StorageImpl> memory;  // expired if it is evicted, or not needed any more
  c10::StorageImpl* key;                             // where it is found; only compared
  c10::Storage held;                                 // while the graph has saved it and it is not evicted
  c10::Storage changed;                              // where the program has it no more, but saved tensors read it
  std::weak_ptr<Pin> pin;                            // belongs to the calls that it is an input of
  std::shared_ptr<Call> call;                        // that computed it; null if the value is kept
  const char* kept_because = nullptr;
  std::vector<std::weak_ptr<Call>> uses;  // recorded calls that have it as an input
  Site* site;
  size_t bytes;
  size_t saved = 0;               // the number of saved tensors that need it
  std::optional<size_t> held_at;  // index among those that are held
  uint64_t last_use = 0, writes = 0;
  bool moved = false;   // it is no longer in the storage in which the program had it
  bool needed = false;  // evicted values are computed from it
  bool evicted = false;

  explicit Value(const c10::Storage& storage, Site& site)
      : memory(storage.getWeakStorageImpl()),
        key(storage.unsafeGetStorageImpl()),
        site(&site),
        bytes(storage.nbytes()) {}
  bool alive() const { return !memory.expired(); }
  c10::Storage lock() const { return c10::Storage(memory.lock()); }
  /// It must be alive.
  std::shared_ptr<Pin> pinned() {
    std::shared_ptr<Pin> now = pin.lock();
    if (!now) pin = now = std::make_shared<Pin>(Pin{lock()});
    return now;
  }
};
using ValuePtr = std::shared_ptr<Value>;

/// A tensor without its memory.
class Outline {
 public:
  Outline() = default;
  explicit Outline(const at::Tensor& tensor);
  /// The tensor, in this memory. Its version counter is new.
  at::Tensor in(const c10::Storage& storage) const;
  /// The version of the tensor that it was taken from, and that the program may change.
  uint32_t version() const { return outline_.unsafeGetTensorImpl()->version_counter().current_version(); }
  const at::Tensor& tensor() const { return outline_; }

 private:
  at::Tensor outline_;
};

/// True if the tensor's memory can be dropped, and made again.
bool is_plain(const at::Tensor& tensor);

}  // namespace amanda::tools::rematerialization
