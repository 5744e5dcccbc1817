// What an operator returned to a replacement that called it.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "amanda/backend.h"
#include "base/shown_handle.h"

namespace amanda::pytorch {

/// Kept until the routine returns, so that a result it passes on can be restored as it was: an undefined tensor is None
/// in Python, and a tensor with a Python object cannot become an `nn.Parameter` or another subclass any more.
class OriginalResults {
 public:
  OriginalResults(OpType type, std::vector<c10::IValue> results);

  OpType type() const { return type_; }
  /// How a tensor among the results is shown to a routine: itself, or another handle that acts as the same tensor.
  at::Tensor shown(size_t position) const;
  /// The result at `position`, if `value` is that result, unchanged; otherwise null. An undefined tensor: none.
  const c10::IValue* behind(size_t position, const at::Tensor& value) const;
  /// Is that value the result at `position` itself?
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
