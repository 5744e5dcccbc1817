// Operands of an operator, put together from the arguments of a node of a compiled graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace amanda::pytorch {

struct Operand {
  enum class Kind : uint8_t { kHidden, kConstant, kTensor, kNumber, kList };

  /// The operand. `type`: by the schema. An undefined tensor is None.
  c10::IValue value(c10::ArrayRef<at::Tensor> tensors, c10::ArrayRef<int64_t> numbers, const c10::TypePtr& type) const;

  Kind kind = Kind::kHidden;
  size_t index = 0;                // of a tensor, or of a number
  c10::IValue constant{};          // known when the graph was made
  std::vector<Operand> members{};  // of a list
};

/// The type of a list's members; any other type itself.
c10::TypePtr member_type(const c10::TypePtr& type);

}  // namespace amanda::pytorch
