// Tensors that hold an object: a compiled graph passes objects that it cannot look into in this way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "amanda/base/no_copy.h"

namespace amanda::pytorch {

/// An object with a number. Its tensors keep it alive: as operands, in code that runs, and saved for a backward pass.
class Held : public std::enable_shared_from_this<Held>, NoCopy {
 public:
  Held();
  virtual ~Held() = default;

  /// A new 0-dim int64 tensor that holds the number.
  at::Tensor tensor();
  /// The object that a tensor, or a copy of one, stands for. Null if that is not alive.
  template <class T>
  static std::shared_ptr<T> of(const at::Tensor& tensor) {
    return std::dynamic_pointer_cast<T>(find(tensor));
  }

  int64_t number() const { return number_; }

 private:
  static std::shared_ptr<Held> find(const at::Tensor& tensor);

  int64_t number_;  // never used again in this process
};

}  // namespace amanda::pytorch
