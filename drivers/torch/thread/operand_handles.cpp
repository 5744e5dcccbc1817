#include "thread/operand_handles.h"

#include <algorithm>

namespace amanda::pytorch {

const at::Tensor& OperandHandles::behind(const at::Tensor& value) const {
  for (const auto& [handle, operand] : shown_) {
    if (handle.stands_for(operand, value)) return operand;
  }
  return value;
}

c10::IValue OperandHandles::behind(const c10::IValue& value) const {
  if (value.isTensor()) return behind(value.toTensor());
  if (!value.isList()) return value;
  const auto members = value.toListRef();
  if (std::none_of(members.begin(), members.end(), [](const c10::IValue& one) { return one.isTensor(); })) return value;
  c10::impl::GenericList list(value.toList().elementType());
  for (const c10::IValue& member : members) {
    list.push_back(member.isTensor() ? c10::IValue(behind(member.toTensor())) : member);
  }
  return list;
}

}  // namespace amanda::pytorch
