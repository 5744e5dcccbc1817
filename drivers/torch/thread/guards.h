// The state that a tool's code runs in, and how to find the program's own meanwhile.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <memory>
#include <optional>

#include "amanda/backend.h"
#include "thread/keys.h"
#include "thread/original_results.h"

namespace amanda::pytorch {

/// Takes the user's __torch_function__ and __torch_dispatch__ modes off while a tool's code runs, or they would see it.
class WithoutUserModes {
 public:
  WithoutUserModes();
  ~WithoutUserModes();
  WithoutUserModes(const WithoutUserModes&) = delete;
  WithoutUserModes& operator=(const WithoutUserModes&) = delete;

  /// Those that were taken off, if there were any.
  const std::optional<c10::impl::TorchDispatchModeTLS>& dispatch_modes() const { return dispatch_modes_; }

 private:
  std::optional<at::impl::PythonTorchFunctionTLS> function_modes_;
  std::optional<c10::impl::TorchDispatchModeTLS> dispatch_modes_;
};

/// Puts the user's __torch_dispatch__ modes back while a replacement runs the original operator: that is the program's.
class WithProgramModes {
 public:
  explicit WithProgramModes(bool in_replacement);
  ~WithProgramModes();
  WithProgramModes(const WithProgramModes&) = delete;
  WithProgramModes& operator=(const WithProgramModes&) = delete;

 private:
  std::optional<c10::impl::TorchDispatchModeTLS> routines_modes_;
};

/// Takes the user's default saved-tensor hooks off: what is recorded meanwhile is not for them.
class WithoutSavedTensorHooks {
 public:
  WithoutSavedTensorHooks() : hooks_(at::SavedTensorDefaultHooks::get_tls_state()) {
    at::SavedTensorDefaultHooks::set_tls_state({});
  }
  ~WithoutSavedTensorHooks() { at::SavedTensorDefaultHooks::set_tls_state(hooks_); }
  WithoutSavedTensorHooks(const WithoutSavedTensorHooks&) = delete;
  WithoutSavedTensorHooks& operator=(const WithoutSavedTensorHooks&) = delete;

 private:
  at::impl::SavedTensorDefaultHooksTLS hooks_;
};

/// Around routines and analyses: their operators are not observed; isolated ones are not recorded either.
class RoutineState {
 public:
  /// Every phase of every operator with a routine has one. `end` takes what `begin` returned.
  static RoutineState* begin(RoutineMode mode);
  static void end(RoutineState* state) noexcept;
  RoutineState(const RoutineState&) = delete;
  RoutineState& operator=(const RoutineState&) = delete;

  /// The innermost on this thread, or null.
  static const RoutineState* current();
  /// Does the program, not the routine that may be running, record gradients here?
  static bool program_records_now();

  /// By the innermost: what the last operator that a routine called gave it. Null: of another type, or none.
  static const OriginalResults& keep(OriginalResults results);
  static const OriginalResults* kept(OpType type);

  RoutineMode mode() const { return mode_; }
  const WithoutUserModes& without_modes() const { return without_modes_; }
  uint64_t first_node() const { return first_node_; }  // nodes recorded inside have a sequence number from here on

 private:
  struct Thread;
  RoutineState(Thread& thread, RoutineMode mode);
  ~RoutineState();

  Thread& thread_;
  ThreadKeys& keys_;
  RoutineMode mode_;
  c10::AutogradState& autograd_;  // this thread's
  bool program_records_;          // was grad mode on where the routine was called?
  uint64_t first_node_;
  RoutineState* outer_;
  WithoutUserModes without_modes_;
  c10::impl::ExcludeDispatchKeyGuard unobserved_;
  std::optional<c10::InferenceMode> no_inference_mode_;
  bool grad_mode_ = false;
  std::unique_ptr<const OriginalResults> kept_;
};

}  // namespace amanda::pytorch
