// Shows which operators a program calls while it is traced: for drivers of compiled code.
#pragma once

#include "forward/forward_call.h"

namespace amanda::pytorch {

/// Receives the outermost operators that this thread calls on traced tensors.
class CallRecorder {
 public:
  /// Must run the call. Operators inside it are not recorded.
  virtual void record(ForwardCall& call) = 0;

 protected:
  ~CallRecorder() = default;
};

/// Has this thread's calls recorded while it exists, whatever the thread's keys are.
class Recording : NoCopy {
 public:
  explicit Recording(CallRecorder& recorder);
  ~Recording();

 private:
  CallRecorder* const outer_;
  const bool outer_recording_;
  const c10::DispatchKeySet included_, excluded_;  // of our keys
};

/// For a call that is no operator of the running program: runs it under this thread's recorder. Returns false if there
/// is none, or if the call belongs to a recorded one.
bool run_recorded(ForwardCall& call);

}  // namespace amanda::pytorch
