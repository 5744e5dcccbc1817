// The operators that wrote to each storage, for InplaceErrors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "amanda/action.h"
#include "amanda/base/mutex.h"

namespace amanda::tools::pytorch {

/// A write to a tensor.
struct Write {
  uint32_t site;                             ///< the operator at its place, as the caller numbers them
  uint32_t input;                            ///< its position
  std::optional<uint32_t> member;            ///< in an input that is a list
  uint32_t before, after;                    ///< the tensor's versions
  std::optional<std::vector<int64_t>> view;  ///< its shape, if it was none of the whole tensor
  std::vector<int64_t> shape;                ///< of the whole tensor
};

/// An input of an operator that is about to write to it.
struct Target {
  uint32_t input;
  std::optional<uint32_t> member;
  at::Tensor tensor;
  std::optional<uint32_t> version;  ///< empty for a tensor of inference mode
};

struct Begun {
  uint32_t site;
  std::vector<Target> targets;
};

/// The last writes to each live storage. Holds no memory, and the tensors of an operator until it has ended, or if it
/// fails until the next one. May be used on any thread.
class Writes {
 public:
  /// An operator at `site` is about to write to these inputs.
  void begin(uint32_t site, Values& inputs);
  /// It has ended. A write counts if the version is another one.
  void end();
  /// The operator that has begun on this thread, and has not ended. It is forgotten.
  std::optional<Begun> take_begun();
  /// Those to a storage, in order.
  std::vector<Write> to(const void* storage) const;
  /// Those to each live storage.
  std::vector<std::vector<Write>> all() const;

 private:
  struct OfStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // until it is gone, no other storage has the address
    std::vector<Write> writes{};
  };
  void add(uint32_t site, const Target& target, uint32_t after);
  void drop_dead();

  mutable Mutex mutex_;  // guards the members below
  std::unordered_map<const void*, OfStorage> storages_;
  std::unordered_map<std::thread::id, Begun> begun_;
  size_t limit_ = 1000;
};

}  // namespace amanda::tools::pytorch
