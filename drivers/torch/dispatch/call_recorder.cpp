#include "dispatch/call_recorder.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "thread/keys.h"

namespace amanda::pytorch {
namespace {

thread_local constinit CallRecorder* this_threads = nullptr;

}  // namespace

Recording::Recording(CallRecorder& recorder)
    : outer_(std::exchange(this_threads, &recorder)),
      included_(c10::impl::tls_is_dispatch_key_included(keys().all)),
      excluded_(c10::impl::tls_is_dispatch_key_excluded(keys().all)) {
  c10::impl::tls_set_dispatch_key_included(keys().all, true);
  c10::impl::tls_set_dispatch_key_excluded(keys().all, false);
}

Recording::~Recording() {
  c10::impl::tls_set_dispatch_key_included(keys().all, included_);
  c10::impl::tls_set_dispatch_key_excluded(keys().all, excluded_);
  this_threads = outer_;
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
