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
    function_ = PythonTorchFunctionTLS::get_state();
    PythonTorchFunctionTLS::set_state({});
  }
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python) && TorchDispatchModeTLS::any_modes_set()) {
    dispatch_ = TorchDispatchModeTLS::get_state();
    TorchDispatchModeTLS::set_state({});
  }
}

WithoutUserModes::~WithoutUserModes() {
  if (function_) at::impl::PythonTorchFunctionTLS::set_state(*function_);
  if (dispatch_) c10::impl::TorchDispatchModeTLS::set_state(*std::move(dispatch_));
}

WithProgramModes::WithProgramModes(bool in_replacement) {
  const RoutineState* routine = in_replacement ? RoutineState::current() : nullptr;
  if (!routine || !routine->dispatch_modes()) return;
  routines_modes_ = c10::impl::TorchDispatchModeTLS::get_state();
  c10::impl::TorchDispatchModeTLS::set_state(*routine->dispatch_modes());
}

WithProgramModes::~WithProgramModes() {
  if (routines_modes_) c10::impl::TorchDispatchModeTLS::set_state(*std::move(routines_modes_));
}

RoutineState::Rare& RoutineState::rare() {
  if (!rare_) rare_ = std::make_unique<Rare>();
  return *rare_;
}

inline RoutineState::RoutineState(ThreadKeys& thread, RoutineMode mode)
    : thread_(thread),
      mode_(mode),
      grad_mode_(thread.autograd->get_grad_mode()),
      inference_mode_(thread.autograd->get_inference_mode()),
      first_node_(at::sequence_number::peek()),
      outer_(std::exchange(thread.routine, this)),
      excluded_before_(thread.bits->excluded()) {
  if (C10_UNLIKELY(WithoutUserModes::may_be_needed(thread.bits->included()))) rare().without_modes.emplace();
  // Autocast would cache casts of parameters that were made without recording, and the program would then train with
  // them.
  const bool ambient = mode == RoutineMode::kAmbient;
  const c10::DispatchKeySet off = ambient ? keys().both : keys().both | c10::autocast_dispatch_keyset;
  excluded_ = off - excluded_before_;
  thread.bits->set_excluded(excluded_before_ | off);
  ++thread.unobserved;
  if (ambient) return;
  if (C10_UNLIKELY(inference_mode_)) rare().no_inference_mode.emplace(false);
  thread.autograd->set_grad_mode(false);
}

inline RoutineState::~RoutineState() {
  --thread_.unobserved;
  if (mode_ == RoutineMode::kIsolated) thread_.autograd->set_grad_mode(grad_mode_);
  thread_.routine = outer_;
  // The inference mode restores all key bits as they were in the routine: ours are turned on after that.
  if (C10_UNLIKELY(rare_ != nullptr)) rare_->no_inference_mode.reset();
  thread_.bits->set_excluded(thread_.bits->excluded() - excluded_);
  if (C10_UNLIKELY(rare_ != nullptr)) end_rare();
}

[[gnu::cold]] void RoutineState::end_rare() noexcept { rare_.reset(); }

[[gnu::hot]] RoutineState* RoutineState::begin(RoutineMode mode) {
  ThreadKeys& thread = thread_keys().with_torch_state();
  if (mode == RoutineMode::kNoOperators) {
    ++thread.unobserved;
    return nullptr;
  }
  if (C10_UNLIKELY(!thread.routine_room)) {
    alignas(RoutineState) static constinit thread_local std::byte room[sizeof(RoutineState)]{};
    thread.routine_room = room;
  }
  void* room = C10_UNLIKELY(thread.routine) ? ::operator new(sizeof(RoutineState)) : thread.routine_room;
  return new (room) RoutineState(thread, mode);
}

[[gnu::hot]] void RoutineState::end(RoutineState* state) noexcept {
  if (!state) {
    --thread_keys().unobserved;
    return;
  }
  const bool in_room = !state->outer_;
  state->~RoutineState();
  if (!in_room) ::operator delete(state);
}

bool RoutineState::program_records() const {
  if (outer_ && outer_->mode_ == RoutineMode::kIsolated) return outer_->program_records();
  // Inside a kernel that autograd called, nothing is recorded, whatever the modes and the tensors are.
  return grad_mode_ && !inference_mode_ && !excluded_before_.has(c10::DispatchKey::AutogradFunctionality);
}

bool RoutineState::records_now(const ThreadKeys& thread) {
  if (thread.routine && thread.routine->mode_ == RoutineMode::kIsolated) return thread.routine->program_records();
  return thread.autograd->get_grad_mode() && !thread.autograd->get_inference_mode() &&
         !thread.bits->excluded().has(c10::DispatchKey::AutogradFunctionality);
}

const OriginalResults& RoutineState::keep(OriginalResults results) {
  std::unique_ptr<const OriginalResults>& kept = thread_keys().routine->rare().kept;
  kept = std::make_unique<const OriginalResults>(std::move(results));
  return *kept;
}

const OriginalResults* RoutineState::kept(OpType type) {
  const RoutineState* innermost = current();
  if (!innermost || !innermost->rare_ || !innermost->rare_->kept) return nullptr;
  const OriginalResults& kept = *innermost->rare_->kept;
  return kept.type() == type ? &kept : nullptr;
}

void RoutineState::keep_shown(const at::Tensor& handle, const at::Tensor& operand) {
  std::optional<OperandHandles>& handles = thread_keys().routine->rare().operand_handles;
  if (!handles) handles.emplace();
  handles->add(handle, operand);
}

const OperandHandles* RoutineState::operand_handles() {
  const RoutineState* innermost = current();
  return innermost && innermost->rare_ && innermost->rare_->operand_handles ? &*innermost->rare_->operand_handles
                                                                            : nullptr;
}

bool RoutineState::program_records_now() { return records_now(thread_keys().with_torch_state()); }

}  // namespace amanda::pytorch
