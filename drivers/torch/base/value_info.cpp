#include "base/value_info.h"

#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/forward_grad.h>

#include "base/packed_weight.h"

namespace amanda::pytorch {
namespace {

std::string_view dtype_name(at::ScalarType type) {
  static const auto names = [] {
    std::array<std::string, static_cast<size_t>(at::ScalarType::NumOptions)> all;
    for (size_t i = 0; i < static_cast<size_t>(at::ScalarType::Undefined); ++i) {
      all[i] = c10::getDtypeNames(static_cast<at::ScalarType>(i)).first;
    }
    return all;
  }();
  return names[static_cast<size_t>(type)];
}

std::optional<IntVector> sizes_of(const at::Tensor& tensor) {
  if (tensor.is_nested()) return std::nullopt;
  if (!tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return IntVector(tensor.sizes());
  IntVector sizes;
  for (const c10::SymInt& size : tensor.sym_sizes()) sizes.push_back(size.maybe_as_int().value_or(kUnknown));
  return sizes;
}

int64_t bytes_of(const std::optional<IntVector>& sizes, int64_t element_size) {
  if (!sizes) return kUnknown;
  int64_t bytes = element_size;
  for (int64_t size : *sizes) {
    if (size == kUnknown) return kUnknown;
    bytes *= size;
  }
  return bytes;
}

// A tensor that torch.func.jvp wraps does not show its tangent.
int tangents_of(const at::Tensor& tensor) {
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) return tangents_of(batched->value());
  if (tensor._fw_grad(/*level=*/0).defined()) return 1;
  const bool is_wrapped = tensor.key_set().has(c10::DispatchKey::FuncTorchGradWrapper);
  return is_wrapped && torch::autograd::ForwardADLevel::try_get_by_idx(0) ? static_cast<int>(kUnknown) : 0;
}

ValueInfo info_of_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  ValueInfo info{.kind = ValueKind::kTensor, .dtype = dtype_name(tensor.scalar_type()), .sizes = sizes_of(tensor)};
  const c10::Device device = tensor.device();
  info.device = device.is_cpu() && !device.has_index() ? "cpu" : device.str();
  info.bytes = bytes_of(info.sizes, static_cast<int64_t>(tensor.element_size()));
  info.requires_grad = tensor.requires_grad();
  info.tangents = tangents_of(tensor);
  return info;
}

ValueInfo info_of_tensors(c10::ArrayRef<c10::IValue> members) {
  ValueInfo info{.kind = ValueKind::kTensors};
  info.elements.reserve(members.size());
  for (const c10::IValue& member : members) {
    const ValueInfo& element = info.elements.emplace_back(info_of(member));
    info.requires_grad |= element.requires_grad;
    info.bytes = info.bytes == kUnknown || element.bytes == kUnknown ? kUnknown : info.bytes + element.bytes;
  }
  return info;
}

// The dtype of a number, or of a list's. "" if the list may hold several dtypes; an empty optional for no numbers.
std::optional<std::string_view> dtype_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return "int64";
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType: return "float64";
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType: return "bool";
    case c10::TypeKind::ComplexType: return "complex128";
    case c10::TypeKind::NumberType: return "";
    default: return std::nullopt;
  }
}

std::optional<int64_t> integer(const c10::IValue& number) {
  if (number.isInt()) return number.toInt();
  if (number.isBool()) return number.toBool();
  if (number.isSymInt()) return number.toSymInt().maybe_as_int();
  return std::nullopt;
}

void add_integers(ValueInfo& info, c10::ArrayRef<c10::IValue> numbers) {
  for (const c10::IValue& number : numbers) {
    const std::optional<int64_t> value = integer(number);
    if (!value) {
      info.integers = {};
      return;
    }
    info.integers.push_back(*value);
  }
}

ValueInfo info_of_list(const c10::IValue& list) {
  const c10::TypePtr element = list.toList().elementType();
  const auto members = list.toListRef();
  if (const auto dtype = dtype_of(*element)) {
    ValueInfo info{.kind = ValueKind::kNumbers, .dtype = *dtype};
    add_integers(info, members);
    return info;
  }
  const bool tensors = list.isTensorList() || list.isOptionalTensorList();
  return tensors ? info_of_tensors(members) : ValueInfo{.kind = ValueKind::kOther};
}

}  // namespace

ValueInfo info_of(const c10::IValue& operand) {
  if (operand.isTensor()) return info_of_tensor(operand.toTensor());
  if (operand.isNone()) return {};
  if (operand.isList()) return info_of_list(operand);
  const auto dtype = dtype_of(*operand.type());
  if (!dtype) return {.kind = ValueKind::kOther, .sizes = sizes_of_packed(operand)};
  ValueInfo info{.kind = ValueKind::kNumber, .dtype = *dtype};
  add_integers(info, operand);
  return info;
}

}  // namespace amanda::pytorch
