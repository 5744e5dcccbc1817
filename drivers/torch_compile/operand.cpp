#include "operand.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

namespace amanda::pytorch {

c10::TypePtr member_type(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) return member_type(optional->getElementType());
  if (const auto list = type->cast<c10::ListType>()) return list->getElementType();
  return type;
}

c10::IValue Operand::value(c10::ArrayRef<at::Tensor> tensors, c10::ArrayRef<int64_t> numbers,
                           const c10::TypePtr& type) const {
  switch (kind) {
    case Kind::kHidden: return {};
    case Kind::kConstant: return constant;
    case Kind::kTensor: return tensors[index].defined() ? c10::IValue(tensors[index]) : c10::IValue();
    case Kind::kNumber: return numbers[index];
    case Kind::kList: break;
  }
  const c10::TypePtr member = member_type(type);
  c10::impl::GenericList list(member->kind() == c10::TypeKind::SymIntType ? c10::IntType::get() : member);
  for (const Operand& one : members) list.push_back(one.value(tensors, numbers, member));
  return list;
}

}  // namespace amanda::pytorch
