// TensorFlow's tensors in the routines of C++ tools. It needs no header of TensorFlow's, and there is nothing to link.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "amanda/action.h"

namespace amanda::tensorflow {

/// A tensor that a routine was given, in the memory of the CPU, in row-major order.
struct TensorView {
  int dtype = 0;               ///< a TF_DataType: 1 is float32, 2 float64, 3 int32, 9 int64
  IntVector sizes{};           ///< of its dimensions
  const void* data = nullptr;  ///< valid until the routine returns; null if the tensor is empty
  size_t bytes = 0;            ///< of the data
};

/// A tensor that a routine makes.
struct NewTensor {
  void* data;   ///< to be filled in; null if the tensor is empty
  Value value;  ///< for Values::set() and Values::set_result(), until the routine returns
};

/// An operator's execution in a graph of TensorFlow, a session's or a function's, for routines.
///
///     context.insert_before_op([](amanda::Values& values) {
///       auto* call = amanda::tensorflow::TensorCall::of(values);
///       const std::optional<amanda::tensorflow::TensorView> x = call->tensor(values[0]);
///       if (x && x->dtype == 1) look_at(static_cast<const float*>(x->data), x->sizes);
///     });
///
/// Valid as `values` are: during the call of the routine, on its thread.
class __attribute__((visibility("default"))) TensorCall {
 public:
  /// The execution that `values` belong to. Null if they are another framework's.
  static TensorCall* of(const Values& values) { return dynamic_cast<TensorCall*>(&values.call()); }

  /// The operand as a tensor. Empty if the operand is None, a list, or one whose data routines do not see, such as a
  /// string or a resource.
  virtual std::optional<TensorView> tensor(Value value) const = 0;
  /// The members of an operand that is a list; none for any other operand. Members that routines do not see are empty.
  virtual std::vector<std::optional<TensorView>> tensors(Value value) const = 0;
  /// A tensor in place of another. Throws `Error` for a type whose data routines do not see.
  virtual NewTensor allocate(int dtype, const IntVector& sizes) = 0;

 protected:
  /// @cond
  ~TensorCall() = default;
  /// @endcond
};

}  // namespace amanda::tensorflow
