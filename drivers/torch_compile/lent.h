// Tensors of compiled code as routines get them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <vector>

#include "amanda/base/no_copy.h"
#include "slot.h"

namespace amanda::pytorch {

/// Compilers reuse the memory of their tensors. A routine gets the same memory in a storage of ours; if it keeps a
/// tensor, or a view of one, the storage gets a copy of the memory when this object dies.
class Lent : NoCopy {
 public:
  /// `op`: whose routines get the tensors, for messages; null if none do.
  explicit Lent(const Operator* op) : op_(op) {}
  ~Lent();

  /// The tensor itself if it requires a gradient (it is the program's own, such as a parameter), or cannot be lent.
  at::Tensor tensor(const at::Tensor& original);

 private:
  struct One {
    c10::StorageImpl* original;
    c10::Storage lent;
  };
  const Operator* const op_;
  std::vector<One> storages_;
};

}  // namespace amanda::pytorch
