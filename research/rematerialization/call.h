// The tool's knowledge of the calls of operators that computed values.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "rematerialization/value.h"

namespace amanda::tools::rematerialization {

/// An input of a call.
struct Operand {
  ValuePtr value;
  Outline outline;
  uint32_t version;
  uint64_t writes;
  bool requires_grad;
  std::shared_ptr<Pin> pin{};

  /// True if the value is still the one that was passed to the call.
  bool unchanged() const { return value->writes == writes && (value->moved || outline.version() == version); }
};

/// One run of an operator: all that is needed to run it again.
struct Call {
  struct Output {
    size_t position, member;
    std::weak_ptr<Value> value;
  };
  enum class Repeatable : uint8_t { kUnknown, kYes, kNo };

  Site* site;
  std::vector<c10::IValue>
      arguments;  // tensors are outlines, in the order of `inputs`; running statistics are themselves
  std::vector<Operand> inputs;
  std::vector<Output> outputs;
  std::optional<c10::impl::LocalDispatchKeySet> keys;
  at::ScalarType autocast_dtype;
  bool trains;
  double cost;
  Repeatable repeatable = Repeatable::kUnknown;
  uint64_t visit = 0;  // of the last walk that came here

  ~Call();
  bool evicted() const;
  /// True if the call updates the argument at this position, which is a running statistic.
  bool updates(size_t position) const;
  /// The results of another run on the inputs in this memory, with the dispatch keys of the first run, and below
  /// autograd, where inputs still show that they require a gradient.
  torch::jit::Stack run(const std::vector<c10::Storage>& memory) const;
};

/// True if the call can run again, from now on, as long as there is something that needs it: values that no call makes
/// are pinned.
bool secure(std::shared_ptr<Call> first);

/// The operand with `fn(tensor)` in place of each defined tensor, also in lists.
template <class Fn>
c10::IValue map_tensors(const c10::IValue& operand, const Fn& fn) {
  if (operand.isTensor()) return operand.toTensor().defined() ? c10::IValue(fn(operand.toTensor())) : operand;
  if (operand.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& member : operand.toTensorVector()) list.push_back(member.defined() ? fn(member) : member);
    return list;
  }
  if (operand.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& member : operand.toOptionalTensorVector()) {
      list.push_back(member && member->defined() ? std::optional<at::Tensor>(fn(*member)) : member);
    }
    return list;
  }
  return operand;
}

/// The defined tensors of an operand, also in lists.
std::vector<at::Tensor> tensors_of(const c10::IValue& operand);

}  // namespace amanda::tools::rematerialization
