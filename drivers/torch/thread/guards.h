// The thread state in which a tool's code runs, and access to the program's own state meanwhile.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <memory>
#include <optional>

#include "amanda/driver/backend.h"
#include "thread/keys.h"
#include "thread/operand_handles.h"
#include "thread/original_results.h"

namespace amanda::pytorch {

/// Removes the user's __torch_function__ and __torch_dispatch__ modes while a tool's code runs; otherwise they would
/// see it.
class WithoutUserModes : NoCopy {
 public:
  /// True if there may be such modes. `included`: the keys that this thread includes.
  static bool may_be_needed(c10::DispatchKeySet included) {
    return at::impl::PythonTorchFunctionTLS::stack_len() > 0 || included.has(c10::DispatchKey::Python);
  }

  WithoutUserModes();
  ~WithoutUserModes();

  /// The removed modes. Null if there were none.
  const c10::impl::TorchDispatchModeTLS* dispatch_modes() const { return dispatch_ ? &*dispatch_ : nullptr; }

 private:
  std::optional<at::impl::PythonTorchFunctionTLS> function_;
  std::optional<c10::impl::TorchDispatchModeTLS> dispatch_;
};

/// Restores the user's __torch_dispatch__ modes while a replacement runs the original operator, which belongs to the
/// program.
class WithProgramModes : NoCopy {
 public:
  explicit WithProgramModes(bool in_replacement);
  ~WithProgramModes();

 private:
  std::optional<c10::impl::TorchDispatchModeTLS> routines_modes_;
};

/// Removes the user's default saved-tensor hooks, which must not see tensors that are recorded meanwhile.
class WithoutSavedTensorHooks : NoCopy {
 public:
  WithoutSavedTensorHooks() : hooks_(at::SavedTensorDefaultHooks::get_tls_state()) {
    at::SavedTensorDefaultHooks::set_tls_state({});
  }
  ~WithoutSavedTensorHooks() { at::SavedTensorDefaultHooks::set_tls_state(hooks_); }

 private:
  at::impl::SavedTensorDefaultHooksTLS hooks_;
};

/// Around routines and analyses: their operators are not observed; isolated ones are not recorded either.
class RoutineState : NoCopy {
 public:
  /// Created for every phase of every operator with a routine. Null with kNoOperators, for which nothing is changed
  /// except that operators are not observed. `end` takes the result of `begin`.
  static RoutineState* begin(RoutineMode mode);
  static void end(RoutineState* state) noexcept;

  /// The innermost one on this thread, or null.
  static const RoutineState* current() { return thread_keys().routine; }
  /// True if the program (not a routine that may be running) records gradients here.
  static bool program_records_now();

  /// For the innermost one: the results of the last operator that the routine called. Null if that operator had another
  /// type, or if there was none.
  static const OriginalResults& keep(OriginalResults results);
  static const OriginalResults* kept(OpType type);

  /// For the innermost one, a replacement: notes that `operand` was shown to it through `handle`.
  static void keep_shown(const at::Tensor& handle, const at::Tensor& operand);
  /// The operands that were shown to it in this way. Null if there were none.
  static const OperandHandles* operand_handles();

  RoutineMode mode() const { return mode_; }
  /// The user's modes that it removed. Null if there were none.
  const c10::impl::TorchDispatchModeTLS* dispatch_modes() const {
    return rare_ && rare_->without_modes ? rare_->without_modes->dispatch_modes() : nullptr;
  }
  uint64_t first_node() const { return first_node_; }  // nodes recorded inside have a sequence number from here on

 private:
  /// State that few routines need: it costs the others only one pointer.
  struct Rare {
    std::optional<WithoutUserModes> without_modes;
    std::optional<c10::InferenceMode> no_inference_mode;
    std::unique_ptr<const OriginalResults> kept;
    std::optional<OperandHandles> operand_handles;
  };

  RoutineState(ThreadKeys& thread, RoutineMode mode);
  ~RoutineState();
  Rare& rare();
  void end_rare() noexcept;

  static bool records_now(const ThreadKeys& thread);
  // True if the program recorded gradients when the routine was called. Few routines ask.
  bool program_records() const;

  ThreadKeys& thread_;  // found once per routine
  RoutineMode mode_;
  bool grad_mode_, inference_mode_;  // the program's
  uint64_t first_node_;
  RoutineState* outer_;
  c10::DispatchKeySet excluded_before_, excluded_;  // excluded_: that were not before
  std::unique_ptr<Rare> rare_;
};

}  // namespace amanda::pytorch
