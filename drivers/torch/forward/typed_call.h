// An unboxed call of an operator with a given C++ signature.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/boxing/impl/boxing.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "forward/unboxed_call.h"

namespace amanda::pytorch {

// ---- the tensors in an operand -------------------------------------------------------------------------------------

template <class Tensors, class T>
void add_tensors(Tensors& tensors, size_t position, const T& operand) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    if (operand.defined()) tensors.push_back({position, &operand});
  } else if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
    if (operand && operand->defined()) tensors.push_back({position, &*operand});
  } else if constexpr (std::is_same_v<T, at::ITensorListRef> || std::is_same_v<T, std::vector<at::Tensor>>) {
    for (const at::Tensor& tensor : operand) add_tensors(tensors, position, tensor);
  }
}

template <class... T>
OperandTensors tensors_of(const std::tuple<T...>& operands) {
  OperandTensors tensors;
  std::apply([&, i = size_t{0}](const auto&... operand) mutable { (add_tensors(tensors, i++, operand), ...); },
             operands);
  return tensors;
}

/// At most N tensors.
template <size_t N>
class FewTensors {
 public:
  void push_back(OperandTensor tensor) { all_[count_++] = tensor; }
  operator c10::ArrayRef<OperandTensor>() const { return {all_, count_}; }

 private:
  size_t count_ = 0;
  OperandTensor all_[N];
};

/// The same as tensors_of(), without a test for more tensors than it has room for, if no operand is a list.
template <class... T>
class TensorsAmong {
 public:
  explicit TensorsAmong(const T&... operands) {
    size_t i = 0;
    (add_tensors(tensors_, i++, operands), ...);
  }
  c10::ArrayRef<OperandTensor> all() const { return tensors_; }

 private:
  static constexpr bool kLists =
      ((std::is_same_v<T, at::ITensorListRef> || std::is_same_v<T, std::vector<at::Tensor>>) || ...);
  std::conditional_t<kLists, OperandTensors, FewTensors<sizeof...(T)>> tensors_;
};

template <class T>
bool is_symbolic(const T& operand) {
  if constexpr (std::is_same_v<T, c10::SymInt>) {
    return is_symbol(operand);
  } else if constexpr (std::is_same_v<T, c10::SymIntArrayRef>) {
    return std::any_of(operand.begin(), operand.end(), [](const c10::SymInt& number) { return is_symbol(number); });
  } else if constexpr (std::is_same_v<T, std::optional<c10::SymInt>> || std::is_same_v<T, at::OptionalSymIntArrayRef>) {
    return operand && is_symbolic(*operand);
  } else {
    return false;
  }
}

/// Results as a tuple, whether the operator has one or several.
template <class T>
struct Results {
  using Tuple = std::tuple<T>;
  static T take(Tuple&& results) { return std::get<0>(std::move(results)); }
};
template <class... T>
struct Results<std::tuple<T...>> {
  using Tuple = std::tuple<T...>;
  static Tuple take(Tuple&& results) { return std::move(results); }
};

template <class Result, class... Args>
class TypedCall final : public UnboxedCall {
 public:
  using Op = c10::TypedOperatorHandle<Result(Args...)>;

  /// `tensors`: among the arguments; they outlive the call.
  TypedCall(const OpRecord& record, const Op& op, c10::DispatchKeySet below, c10::ArrayRef<OperandTensor> tensors,
            std::remove_reference_t<Args>&... arguments)
      : UnboxedCall(record, op, below, tensors), typed_(op), operands_(arguments...) {
    static_assert(sizeof...(Args) + std::tuple_size_v<Tuple> <= ShownOperands::kMost);
  }

  bool has_symbols() const override {
    return std::apply([](const auto&... operand) { return (is_symbolic(operand) || ...); }, operands_);
  }

  /// Called after the call: returns the program's result.
  Result take_result() {
    if constexpr (kInPlace) {
      return std::get<0>(operands_);
    } else {
      if (torch::jit::Stack* stack = boxed_results()) return c10::impl::PopResult<Result>::call(*stack);
      return Results<Result>::take(*std::move(kept_));
    }
  }

 protected:
  OperandTensors unboxed_results() const override { return kept_ ? tensors_of(*kept_) : OperandTensors(); }
  c10::IValue box(Side side, size_t position) const override {
    return side == Side::kOutputs ? box_one(*kept_, position) : box_one(operands_, position);
  }
  void push_arguments(torch::jit::Stack& stack) const override { push(stack, operands_); }
  void push_results(torch::jit::Stack& stack) const override { push(stack, *kept_); }

  void redispatch() override {
    std::apply([&](auto&... argument) { kept_.emplace(typed_.redispatch(below_, argument...)); }, operands_);
  }

 private:
  static constexpr bool kInPlace = std::is_same_v<Result, at::Tensor&>;
  using Tuple = typename Results<std::remove_reference_t<Result>>::Tuple;

  template <class Operands>
  static c10::IValue box_one(const Operands& operands, size_t position) {
    c10::IValue value;
    auto take = [&, i = size_t{0}](const auto& operand) mutable {
      if (i++ == position) value = c10::IValue(operand);
    };
    std::apply([&](const auto&... operand) { (take(operand), ...); }, operands);
    return value;
  }
  template <class Operands>
  static void push(torch::jit::Stack& stack, const Operands& operands) {
    std::apply([&](const auto&... operand) { torch::jit::push(stack, operand...); }, operands);
  }

  const Op& typed_;
  std::tuple<std::remove_reference_t<Args>&...> operands_;
  std::optional<Tuple> kept_;
};

}  // namespace amanda::pytorch
