#include "base/stack_value.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "amanda/driver/backend.h"
#include "amanda/error.h"
#include "base/python_hooks.h"

namespace amanda::pytorch {
namespace {

std::string kind_of(const c10::IValue& value) {
  if (value.isTensor() && !value.toTensor().defined()) return "None";
  return value.isNone() ? "None" : value.tagKind();
}

bool is_fake(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python) && python_hooks.is_symbolic &&
         python_hooks.is_symbolic(py_object(tensor));
}

void check_tensor(const at::Tensor& old, const at::Tensor& value) {
  if (!old.defined() || !value.defined()) return;
  check_stand_in(old.scalar_type(), old.device(), value);
  if (value.layout() != old.layout()) {
    throw Error(c10::str("a tensor of layout ", value.layout(), " cannot replace one of layout ", old.layout(),
                         "; convert it with .to_dense() or its like"));
  }
  if (value.is_nested() != old.is_nested()) {
    throw Error(value.is_nested() ? "a nested tensor cannot replace one that is not"
                                  : "a tensor that is not nested cannot replace one that is");
  }
  if (is_fake(value) && !is_fake(old)) throw Error("a fake tensor cannot replace one with data");
}

bool has_type(const c10::Argument& argument, const c10::IValue& value) {
  switch (argument.type()->kind()) {  // a plain value can replace a symbolic one
    case c10::TypeKind::SymIntType: return value.isInt() || value.isSymInt();
    case c10::TypeKind::SymFloatType: return value.isDouble() || value.isSymFloat();
    case c10::TypeKind::SymBoolType: return value.isBool() || value.isSymBool();
    default: break;
  }
  if (value.isTensor()) {
    if (argument.type()->kind() == c10::TypeKind::TensorType) return value.toTensor().defined();
    if (const auto optional = argument.type()->cast<c10::OptionalType>()) {
      return optional->getElementType()->kind() == c10::TypeKind::TensorType;
    }
    return false;
  }
  if (value.isBool() && c10::NumberType::get()->isSubtypeOf(*argument.type())) return true;  // a Scalar can be a bool
  return value.type()->isSubtypeOf(*argument.type());
}

}  // namespace

OperandTensors tensors_of(c10::ArrayRef<c10::IValue> operands) {
  OperandTensors tensors;
  for (size_t i = 0; i < operands.size(); ++i) {
    each_tensor(operands[i], [&](const at::Tensor& tensor) { tensors.push_back({i, &tensor}); });
  }
  return tensors;
}

bool is_symbol(const c10::SymInt& number) {
  if (!number.is_heap_allocated()) return false;
  c10::SymNodeImpl* node = number.toSymNodeImplUnowned();
  return !node->is_nested_int() && !number.maybe_as_int();
}

bool is_symbol(const c10::IValue& operand) {
  if (operand.isSymInt()) return is_symbol(operand.toSymInt());
  if (operand.isSymFloat()) return operand.toSymFloat().is_symbolic();
  if (operand.isSymBool()) return operand.toSymBool().is_heap_allocated();
  if (!operand.isList()) return false;
  const auto members = operand.toListRef();
  return std::any_of(members.begin(), members.end(), [](const c10::IValue& member) { return is_symbol(member); });
}

bool same_shape(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_nested() && !b.is_nested()) return a.sizes().equals(b.sizes());
  return a.is_nested() && b.is_nested() && a.is_same_size(b);
}

[[gnu::hot]] uint64_t version_sum(c10::ArrayRef<OperandTensor> operands) {
  uint64_t sum = 0;
  for (const OperandTensor& operand : operands) {
    const c10::VariableVersion& version = operand.tensor->unsafeGetTensorImpl()->version_counter();
    if (version.enabled())
      sum += version.current_version() * version_weight(operand.position);  // inference tensors: not
  }
  return sum;
}

uint64_t version_sum_besides(c10::ArrayRef<size_t> written, c10::ArrayRef<OperandTensor> operands) {
  auto is_written = [&](const OperandTensor& operand) {
    return std::any_of(operands.begin(), operands.end(), [&](const OperandTensor& other) {
      const bool shares = &other == &operand || (operand.tensor->has_storage() && other.tensor->has_storage() &&
                                                 operand.tensor->storage().is_alias_of(other.tensor->storage()));
      return shares && std::find(written.begin(), written.end(), other.position) != written.end();
    });
  };
  uint64_t sum = 0;
  for (const OperandTensor& operand : operands) {
    if (!is_written(operand)) sum += version_sum(operand);
  }
  return sum;
}

void check_stand_in(at::ScalarType dtype, c10::Device device, const at::Tensor& value) {
  if (value.scalar_type() != dtype) {
    throw Error(c10::str("a tensor of dtype ", value.scalar_type(), " cannot replace one of ", dtype,
                         "; convert it with .to(dtype)"));
  }
  if (value.device() != device) {
    throw Error(c10::str("a tensor on ", value.device(), " cannot replace one on ", device, "; move it"));
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
