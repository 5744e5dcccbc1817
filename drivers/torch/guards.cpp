#include "guards.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>

#include <cstddef>
#include <utility>

#include "keys.h"

namespace amanda::pytorch {
namespace {
thread_local RoutineState* innermost = nullptr;
}

WithoutUserModes::WithoutUserModes() {
  using at::impl::PythonTorchFunctionTLS;
  using c10::impl::TorchDispatchModeTLS;
  if (PythonTorchFunctionTLS::stack_len() > 0) {
    function_modes_ = PythonTorchFunctionTLS::get_state();
    PythonTorchFunctionTLS::set_state({});
  }
  if (TorchDispatchModeTLS::any_modes_set()) {
    dispatch_modes_ = TorchDispatchModeTLS::get_state();
    TorchDispatchModeTLS::set_state({});
  }
}

WithoutUserModes::~WithoutUserModes() {
  if (function_modes_) at::impl::PythonTorchFunctionTLS::set_state(*function_modes_);
  if (dispatch_modes_) c10::impl::TorchDispatchModeTLS::set_state(*std::move(dispatch_modes_));
}

RoutineState::RoutineState(RoutineMode mode)
    : mode_(mode),
      program_records_(program_records_now()),
      first_node_(at::sequence_number::peek()),
      outer_(innermost),
      unobserved_(keys().both) {
  innermost = this;
  if (mode == RoutineMode::kAmbient) return;
  if (c10::InferenceMode::is_enabled()) no_inference_mode_.emplace(false);
  no_grad_.emplace(false);
  no_autocast_.emplace(c10::autocast_dispatch_keyset);
}

RoutineState::~RoutineState() { innermost = outer_; }

namespace {

// Every phase of every operator with a routine has one; only those inside another's come from the heap.
struct Slot {
  alignas(RoutineState) std::byte memory[sizeof(RoutineState)]{};
  bool taken = false;
};

Slot& slot() {
  thread_local constinit Slot slot;
  return slot;
}

}  // namespace

void* RoutineState::operator new(size_t size) {
  Slot& free = slot();
  if (std::exchange(free.taken, true)) return ::operator new(size);
  return free.memory;
}

void RoutineState::operator delete(void* memory) noexcept {
  if (memory != slot().memory) return ::operator delete(memory);
  slot().taken = false;
}

const RoutineState* RoutineState::current() { return innermost; }

bool RoutineState::program_records_now() {
  if (innermost && innermost->mode_ == RoutineMode::kIsolated) return innermost->program_records_;
  return c10::GradMode::is_enabled() && !c10::InferenceMode::is_enabled();
}

}  // namespace amanda::pytorch
