#include "dispatch/call_recorder.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "thread/keys.h"

namespace amanda::pytorch {
namespace {

thread_local constinit CallRecorder* this_threads = nullptr;

// Sets the bits of our keys only.
void set_bits(c10::DispatchKeySet included, c10::DispatchKeySet excluded) {
  c10::impl::LocalDispatchKeySet bits = c10::impl::tls_local_dispatch_key_set();
  bits.included_ = (bits.included_ - keys().both) | included;
  bits.excluded_ = (bits.excluded_ - keys().both) | excluded;
  c10::impl::_force_tls_local_dispatch_key_set(bits);
}

}  // namespace

Recording::Recording(CallRecorder& recorder)
    : outer_(std::exchange(this_threads, &recorder)),
      outer_recording_(std::exchange(thread_keys().recording, true)),
      included_(c10::impl::tls_local_dispatch_key_set().included_ & keys().both),
      excluded_(c10::impl::tls_local_dispatch_key_set().excluded_ & keys().both) {
  set_bits({}, {});
  thread_keys().restore();
}

Recording::~Recording() {
  this_threads = outer_;
  thread_keys().recording = outer_recording_;
  set_bits(included_, excluded_);
}

bool run_recorded(ForwardCall& call) {
  if (C10_LIKELY(!this_threads) || call.record().noise) return false;
  // torch.func and modes may turn the key on again inside.
  struct Inside {
    CallRecorder* const recorder = std::exchange(this_threads, nullptr);
    ~Inside() { this_threads = recorder; }
  } inside;
  inside.recorder->record(call);
  return true;
}

}  // namespace amanda::pytorch
