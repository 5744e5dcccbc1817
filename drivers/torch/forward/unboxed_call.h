// One operator call whose operands are not boxed, as the core sees it.
#pragma once

#include <ATen/core/stack.h>

#include <new>
#include <optional>

#include "forward/forward_call.h"
#include "forward/stack_call.h"

namespace amanda::pytorch {

/// Operands that get() has returned references to, each boxed alone.
class ShownOperands : NoCopy {
 public:
  static constexpr size_t kMost = 16;

  ShownOperands() = default;
  ~ShownOperands() {
    for (size_t i = 0; made_ >> i; ++i) {
      if (made_ >> i & 1) slot(i).~IValue();
    }
  }

  template <class Box>
  c10::IValue& get(size_t i, const Box& box) {
    if (!(made_ >> i & 1)) {
      new (&slots_[i]) c10::IValue(box());
      made_ |= 1u << i;
    }
    return slot(i);
  }

 private:
  struct alignas(c10::IValue) Slot {
    std::byte memory[sizeof(c10::IValue)];
  };
  c10::IValue& slot(size_t i) { return *std::launder(reinterpret_cast<c10::IValue*>(&slots_[i])); }

  uint32_t made_ = 0;
  Slot slots_[kMost];  // not initialised: most calls need none
};

// NOTE: [unboxed calls] A boxed stack costs about as much as everything else in an observed operator. So the operators
// that dominate models arrive with their C++ operands (typed_kernels.cpp), and keep them while tools only read.
// Whatever changes the call (an edit, a replacement, an in-place operator whose result may be edited) boxes the whole
// call, and a StackCall takes over: only StackCall implements edits.
class UnboxedCall : public ForwardCall {
 public:
  Value get(Side side, size_t position) final;
  void run(RunHints hints) final;
  void skip(RunHints hints) final { boxed().skip(hints); }
  [[gnu::hot]] bool is_boxed() const final { return boxed_.has_value(); }
  bool has_results() const final { return boxed_ ? boxed_->call.has_results() : ran_; }
  void show_run_inputs() final {
    shows_run_inputs_ = true;
    if (boxed_) boxed_->call.show_run_inputs();
  }
  void finish() final {
    if (boxed_) boxed_->call.finish();
  }
  void set(Side side, size_t position, Value value) final { boxed().set(side, position, value); }
  bool stops_gradient(Side side, size_t position, Value value) final {
    return boxed().stops_gradient(side, position, value);
  }
  [[gnu::hot]] void commit() final {
    if (boxed_) boxed_->call.commit();
  }
  void discard() noexcept final {
    if (boxed_) boxed_->call.discard();
  }
  uint64_t versions(Side side) const final;
  uint64_t unmutated_versions() const final;
  void watch_backward(bool keep_operands) final;
  bool bind_backward(ScopeStack& scopes, const SubscriptionPtr& seen_by, RunSource& runs) final;
  bool result_is_view() const final { return const_cast<UnboxedCall*>(this)->boxed().result_is_view(); }
  bool is_viewed(size_t position) final { return boxed().is_viewed(position); }
  void abandon() noexcept final {
    if (boxed_) boxed_->call.abandon();
  }
  c10::ArrayRef<OperandTensor> argument_tensors() const final {
    return boxed_ ? boxed_->call.argument_tensors() : arguments_;
  }
  c10::ArrayRef<OperandTensor> result_tensors() const final {
    return boxed_ ? boxed_->call.result_tensors() : results_.emplace(unboxed_results());
  }
  const at::Tensor* unboxed_tensor(Side side, size_t position) const final;

 protected:
  UnboxedCall(const OpRecord& record, const c10::OperatorHandle& op, c10::DispatchKeySet below,
              c10::ArrayRef<OperandTensor> arguments)
      : ForwardCall(record), op_(op), below_(below), arguments_(arguments) {}
  [[gnu::hot]] ~UnboxedCall() = default;
  std::shared_ptr<ForwardOperands> operands_now() const final;

  // Implemented by templates on the operator's C++ types.
  virtual OperandTensors unboxed_results() const = 0;
  virtual c10::IValue box(Side side, size_t position) const = 0;
  virtual void push_arguments(torch::jit::Stack& stack) const = 0;
  virtual void push_results(torch::jit::Stack& stack) const = 0;
  virtual void redispatch() = 0;  // and stores the results

  /// The results for the program, if the call was boxed; else null.
  torch::jit::Stack* boxed_results() { return boxed_ ? &boxed_->stack : nullptr; }

  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet below_;

 private:
  struct Boxed {
    Boxed(const UnboxedCall& unboxed, torch::jit::Stack arguments)
        : stack(std::move(arguments)), call(unboxed.record_, unboxed.op_, unboxed.below_, stack, unboxed.identity_) {}
    torch::jit::Stack stack;
    StackCall call;
  };
  StackCall& boxed();
  void redispatch(RunHints hints);

  RunHints hints_;
  bool ran_ = false, shows_run_inputs_ = false;
  const c10::ArrayRef<OperandTensor> arguments_;
  std::optional<NodeWindow> made_;
  ShownOperands shown_;
  mutable std::optional<OperandTensors> results_;
  std::optional<Boxed> boxed_;
};

}  // namespace amanda::pytorch
