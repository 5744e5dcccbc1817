#include "thread/guards.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/AutogradState.h>

#include <cstddef>
#include <new>
#include <utility>

#include "thread/keys.h"

namespace amanda::pytorch {
WithoutUserModes::WithoutUserModes() {
  using at::impl::PythonTorchFunctionTLS;
  using c10::impl::TorchDispatchModeTLS;
  if (PythonTorchFunctionTLS::stack_len() > 0) {
    function_modes_ = PythonTorchFunctionTLS::get_state();
    PythonTorchFunctionTLS::set_state({});
  }
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python) && TorchDispatchModeTLS::any_modes_set()) {
    dispatch_modes_ = TorchDispatchModeTLS::get_state();
    TorchDispatchModeTLS::set_state({});
  }
}

WithoutUserModes::~WithoutUserModes() {
  if (function_modes_) at::impl::PythonTorchFunctionTLS::set_state(*function_modes_);
  if (dispatch_modes_) c10::impl::TorchDispatchModeTLS::set_state(*std::move(dispatch_modes_));
}

WithProgramModes::WithProgramModes(bool in_replacement) {
  const RoutineState* routine = in_replacement ? RoutineState::current() : nullptr;
  if (!routine || !routine->without_modes().dispatch_modes()) return;
  routines_modes_ = c10::impl::TorchDispatchModeTLS::get_state();
  c10::impl::TorchDispatchModeTLS::set_state(*routine->without_modes().dispatch_modes());
}

WithProgramModes::~WithProgramModes() {
  if (routines_modes_) c10::impl::TorchDispatchModeTLS::set_state(*std::move(routines_modes_));
}

// Looked up once per routine: the thread's data, with space for the outermost state.
struct RoutineState::Thread {
  static Thread& current() {
    thread_local constinit Thread thread;
    return thread;
  }
  bool program_records(const c10::AutogradState& autograd) const {
    if (innermost && innermost->mode_ == RoutineMode::kIsolated) return innermost->program_records_;
    // Inside a kernel that autograd called, nothing is recorded, whatever the modes and the tensors are.
    return autograd.get_grad_mode() && !autograd.get_inference_mode() &&
           !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality);
  }

  RoutineState* innermost = nullptr;
  alignas(RoutineState) std::byte room[sizeof(RoutineState)]{};
};

RoutineState* RoutineState::begin(RoutineMode mode) {
  Thread& thread = Thread::current();
  void* room = thread.innermost ? ::operator new(sizeof(RoutineState)) : thread.room;
  return new (room) RoutineState(thread, mode);
}

void RoutineState::end(RoutineState* state) noexcept {
  const bool in_room = static_cast<void*>(state) == state->thread_.room;
  state->~RoutineState();
  if (!in_room) ::operator delete(state);
}

RoutineState::RoutineState(Thread& thread, RoutineMode mode)
    : thread_(thread),
      keys_(thread_keys()),
      mode_(mode),
      autograd_(c10::AutogradState::get_tls_state()),
      program_records_(thread.program_records(autograd_)),
      first_node_(at::sequence_number::peek()),
      outer_(std::exchange(thread.innermost, this)),
      // Autocast would cache casts of parameters that were made without recording, and the program would then train
      // with them.
      unobserved_(mode == RoutineMode::kAmbient ? keys().both : keys().both | c10::autocast_dispatch_keyset) {
  ++keys_.unobserved;
  if (mode == RoutineMode::kAmbient) return;
  if (autograd_.get_inference_mode()) no_inference_mode_.emplace(false);
  grad_mode_ = autograd_.get_grad_mode();
  autograd_.set_grad_mode(false);
}

RoutineState::~RoutineState() {
  --keys_.unobserved;
  if (mode_ == RoutineMode::kIsolated) autograd_.set_grad_mode(grad_mode_);
  thread_.innermost = outer_;
}

const OriginalResults& RoutineState::keep(OriginalResults results) {
  std::unique_ptr<const OriginalResults>& kept = Thread::current().innermost->kept_;
  kept = std::make_unique<const OriginalResults>(std::move(results));
  return *kept;
}

const OriginalResults* RoutineState::kept(OpType type) {
  const RoutineState* innermost = current();
  return innermost && innermost->kept_ && innermost->kept_->type() == type ? innermost->kept_.get() : nullptr;
}

const RoutineState* RoutineState::current() { return Thread::current().innermost; }

bool RoutineState::program_records_now() {
  return Thread::current().program_records(c10::AutogradState::get_tls_state());
}

}  // namespace amanda::pytorch
