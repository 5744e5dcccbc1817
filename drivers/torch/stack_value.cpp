#include "stack_value.h"

#include <c10/util/StringUtil.h>

#include "amanda/error.h"

namespace amanda::pytorch {
namespace {

std::string kind_of(const c10::IValue& value) {
  if (value.isTensor() && !value.toTensor().defined()) return "None";
  return value.isNone() ? "None" : value.tagKind();
}

void check_tensor(const at::Tensor& old, const at::Tensor& value) {
  if (old.defined() && value.defined()) check_stand_in(old.scalar_type(), old.device(), value);
}

bool has_type(const c10::Argument& argument, const c10::IValue& value) {
  if (value.isTensor()) {
    if (argument.type()->kind() == c10::TypeKind::TensorType) return value.toTensor().defined();
    if (const auto optional = argument.type()->cast<c10::OptionalType>()) {
      return optional->getElementType()->kind() == c10::TypeKind::TensorType;
    }
    return false;
  }
  return value.type()->isSubtypeOf(*argument.type());
}

}  // namespace

uint64_t version_sum(c10::ArrayRef<c10::IValue> operands) {
  uint64_t sum = 0;
  each_tensor(operands, [&](const at::Tensor& tensor) {
    if (!tensor.is_inference()) sum += tensor._version();
  });
  return sum;
}

void check_stand_in(at::ScalarType dtype, c10::Device device, const at::Tensor& value) {
  if (value.scalar_type() != dtype) {
    throw Error(c10::str("a tensor of dtype ", value.scalar_type(), " can't stand for one of ", dtype,
                         "; convert it with .to(dtype)"));
  }
  if (value.device() != device) {
    throw Error(c10::str("a tensor on ", value.device(), " can't stand for one on ", device, "; move it"));
  }
}

void check_stand_in(const c10::Argument& argument, const c10::IValue& old, const c10::IValue& value) {
  if (!has_type(argument, value)) {
    throw Error(c10::str("got ", kind_of(value), " where ", argument.type()->str(), " is needed"));
  }
  if (value.isTensor() && old.isTensor()) return check_tensor(old.toTensor(), value.toTensor());
  if (value.isList() && old.isList()) {
    const auto olds = old.toListRef(), values = value.toListRef();
    for (size_t i = 0; i < std::min(olds.size(), values.size()); ++i) {
      if (olds[i].isTensor() && values[i].isTensor()) check_tensor(olds[i].toTensor(), values[i].toTensor());
    }
  }
}

}  // namespace amanda::pytorch
