#include "python_ref.h"

#include <atomic>
#include <mutex>
#include <vector>

#include "amanda/base/mutex.h"

namespace amanda::python {
namespace {

Mutex mutex;
std::atomic<bool> any_queued{false};  // each routine asks
std::vector<PyObject*>& queue() {
  static auto* objects = new std::vector<PyObject*>;  // leaked: threads may outlive static destructors
  return *objects;
}

int drain_pending(void*) {
  drain_released();
  return 0;
}

}  // namespace

bool interpreter_is_gone() {
#if PY_VERSION_HEX >= 0x030D0000
  return !Py_IsInitialized() || Py_IsFinalizing();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

void release(PyObject* object) noexcept {
  if (!object || interpreter_is_gone()) return;
  if (PyGILState_Check()) {
    Py_DECREF(object);
    return;
  }
  bool first;
  {
    std::lock_guard lock(mutex);
    first = queue().empty();
    queue().push_back(object);
    any_queued.store(true, std::memory_order_relaxed);
  }
  if (first) Py_AddPendingCall(&drain_pending, nullptr);  // if that fails, the next routine drains
}

[[gnu::hot]] void drain_released() {
  if (!any_queued.load(std::memory_order_relaxed)) return;  // the next routine releases any object missed here
  std::vector<PyObject*> objects;
  {
    std::lock_guard lock(mutex);
    objects.swap(queue());
    any_queued.store(false, std::memory_order_relaxed);
  }
  for (PyObject* object : objects) Py_DECREF(object);
}

}  // namespace amanda::python
