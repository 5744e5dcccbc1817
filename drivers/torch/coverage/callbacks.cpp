#include "coverage/callbacks.h"

#include <mutex>
#include <optional>
#include <utility>

#include "amanda/base/leaked.h"
#include "amanda/base/mutex.h"
#include "amanda/base/no_copy.h"

namespace amanda::pytorch {
namespace {

struct Changes {
  Mutex mutex;
};

// Holds off forks. A child's handlers of forks run before the mutex is free there, on its only thread.
class [[nodiscard]] Change : NoCopy {
 public:
  Change() {
    if (!Mutex::all_held_here()) lock_ = std::unique_lock(leaked<Changes>().mutex);
  }

 private:
  std::unique_lock<Mutex> lock_;
};

// Otherwise PyTorch renews this thread's copy of all callbacks at its next operator, with the lock held.
void renew_here() { at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION); }

}  // namespace

const at::RecordFunctionCallbacks& callbacks_here() {
  thread_local constinit bool looked = false;
  std::optional<Change> first;
  if (!std::exchange(looked, true)) first.emplace();
  return at::get_record_function_tls_().sorted_tls_callbacks_;
}

at::CallbackHandle add_callback_here(const at::RecordFunctionCallback& callback) {
  const Change change;
  return at::addThreadLocalCallback(callback);
}

at::CallbackHandle add_callback_everywhere(const at::RecordFunctionCallback& callback) {
  const Change change;
  const at::CallbackHandle added = at::addGlobalCallback(callback);
  renew_here();
  return added;
}

void remove_callback_here(at::CallbackHandle callback) {
  const Change change;
  at::removeCallback(callback);
}

void remove_callback_everywhere(at::CallbackHandle callback) {
  const Change change;
  at::removeCallback(callback);
  renew_here();
}

}  // namespace amanda::pytorch
