#include "rematerialization/call.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "amanda/base/no_copy.h"
#include "clock.h"

namespace amanda::tools::rematerialization {
namespace {

// Casts of parameters are not cached: a backward pass does not end with an autocast region, which would drop them.
class AutocastTo : NoCopy {
 public:
  explicit AutocastTo(at::ScalarType dtype) {
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
  }
  ~AutocastTo() {
    at::autocast::set_autocast_cache_enabled(caches_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_);
  }

 private:
  bool caches_ = at::autocast::is_autocast_cache_enabled();
  at::ScalarType dtype_ = at::autocast::get_autocast_dtype(at::kCPU);
};

}  // namespace

// Calls form long chains. The values of calls that end with this one are collected, rather than destroyed by recursion.
Call::~Call() {
  static thread_local std::vector<ValuePtr>* ending = nullptr;
  std::vector<ValuePtr> own;
  std::vector<ValuePtr>& inputs_of_ended = ending ? *ending : own;
  for (Operand& input : inputs) inputs_of_ended.push_back(std::move(input.value));
  if (ending) return;
  ending = &own;
  while (!own.empty()) {
    const ValuePtr next = std::move(own.back());
    own.pop_back();
  }
  ending = nullptr;
}

bool Call::evicted() const {
  return std::none_of(outputs.begin(), outputs.end(), [](const Output& output) {
    const ValuePtr value = output.value.lock();
    return value && value->alive();
  });
}

bool Call::updates(size_t position) const {
  const std::vector<size_t>& statistics = site->running_statistics;
  return trains && std::find(statistics.begin(), statistics.end(), position) != statistics.end();
}

torch::jit::Stack Call::run(const std::vector<c10::Storage>& memory) const {
  torch::jit::Stack stack;
  size_t next = 0;
  const c10::impl::ForceDispatchKeyGuard force(*keys);
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::AutoGradMode records(true);
  for (size_t i = 0; i < arguments.size(); ++i) {
    stack.push_back(map_tensors(arguments[i], [&](const at::Tensor& tensor) {
      if (updates(i)) return tensor.clone();  // once, not twice
      const size_t index = next++;
      at::Tensor input = inputs[index].outline.in(memory[index]);
      if (inputs[index].requires_grad) input.set_requires_grad(true);
      return input;
    }));
  }
  const AutocastTo autocast(autocast_dtype);
  const int64_t start = now_ns();
  site->handle->callBoxed(stack);
  site->recompute_ns += now_ns() - start;
  ++site->recomputed;
  return stack;
}

// By value: the results of a call that fails give it up.
bool secure(std::shared_ptr<Call> first) {
  using Repeatable = Call::Repeatable;
  std::vector<std::shared_ptr<Call>> path{first};
  while (!path.empty()) {
    Call& call = *path.back();
    if (call.repeatable != Repeatable::kUnknown) {
      path.pop_back();
      continue;
    }
    const bool unchanged =
        std::all_of(call.inputs.begin(), call.inputs.end(), [](const Operand& input) { return input.unchanged(); });
    std::shared_ptr<Call> unknown;
    for (const Operand& input : call.inputs) {
      const std::shared_ptr<Call>& maker = input.value->call;
      if (unchanged && maker && maker->repeatable == Repeatable::kUnknown) unknown = maker;
    }
    if (unknown) {
      path.push_back(unknown);
      continue;
    }
    call.repeatable = unchanged ? Repeatable::kYes : Repeatable::kNo;
    for (Operand& input : call.inputs) {
      Value& value = *input.value;
      const bool made_again = value.call && value.call->repeatable == Repeatable::kYes;
      if (!unchanged || made_again) continue;
      if (value.alive()) {
        input.pin = value.pinned();
      } else {
        call.repeatable = Repeatable::kNo;
      }
    }
    if (call.repeatable == Repeatable::kYes) {
      for (const Operand& input : call.inputs) input.value->needed = true;
    } else {
      for (const Call::Output& output : call.outputs) {
        const ValuePtr value = output.value.lock();
        if (!value) continue;
        value->call = nullptr;
        value->kept_because = kInputsGone;
      }
    }
    path.pop_back();
  }
  return first->repeatable == Repeatable::kYes;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& operand) {
  std::vector<at::Tensor> found;
  map_tensors(operand, [&](const at::Tensor& tensor) {
    found.push_back(tensor);
    return tensor;
  });
  return found;
}

}  // namespace amanda::tools::rematerialization
