// The results that an operator returned to a replacement that called it.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "amanda/driver/backend.h"
#include "base/shown_handle.h"

namespace amanda::pytorch {

/// Kept until the routine returns, so that a result that the routine passes on can be restored as it was. An undefined
/// tensor is None in Python, and a tensor with a Python object cannot become an `nn.Parameter` or another subclass any
/// more.
class OriginalResults {
 public:
  OriginalResults(OpType type, std::vector<c10::IValue> results);

  OpType type() const { return type_; }
  /// The tensor that a routine sees for a tensor among the results: itself, or another handle that acts as the same
  /// tensor.
  at::Tensor shown(size_t position) const;
  /// The result at `position`, if `value` is that result, unchanged; otherwise null. An undefined `value` stands for
  /// None.
  const c10::IValue* behind(size_t position, const at::Tensor& value) const;
  /// True if that value is the result at `position` itself.
  bool is(size_t position, const c10::IValue& value) const {
    return position < results_.size() && results_[position].is(value);
  }

 private:
  struct Handle {
    ShownHandle handle;
    uint32_t version = 0;
  };

  OpType type_;
  std::vector<c10::IValue> results_;
  std::vector<Handle> handles_;
};

}  // namespace amanda::pytorch
