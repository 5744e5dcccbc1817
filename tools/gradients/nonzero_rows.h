// The rows of leaves that have got a gradient other than zero, for GradientCuts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "amanda/action.h"
#include "amanda/base/mutex.h"

namespace amanda::tools::pytorch {

/// Keeps no tensor of the program alive. May be used on any thread.
class NonzeroRows {
 public:
  /// The leaves that came to a routine.
  using Leaves = std::unordered_set<const void*>;

  /// From now on, the gradients of this leaf are read. `rows`: of bool, contiguous, on the host; a gradient is cut into
  /// as many along its first dimension, and true is written where an element is not zero. `number`: the caller's.
  void add(int64_t number, const at::Tensor& leaf, at::Tensor rows);
  /// Forgets all leaves.
  void clear();

  /// A routine before AccumulateGrad. Returns false if the caller has to read the gradient: it is the leaf's first in
  /// this routine, the leaf was not added, or it can't be read here.
  bool read(Values& values, Leaves& known);

  /// The numbers of the leaves that got a gradient since the last call, and whether it was not zero.
  std::vector<std::pair<int64_t, bool>> take();

 private:
  struct Leaf {
    int64_t number;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // until it is gone, no other leaf has the address
    at::Tensor rows;
  };

  Mutex mutex_;  // guards the members below, and the sets that `read` is given
  std::unordered_map<const void*, Leaf> leaves_;
  std::vector<std::pair<int64_t, bool>> arrived_;
};

}  // namespace amanda::tools::pytorch
