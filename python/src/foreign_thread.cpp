#include "foreign_thread.h"

#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "amanda/base/mutex.h"
#include "python_ref.h"

namespace amanda::python {
namespace {

Mutex ended_mutex;
std::vector<PyThreadState*>& ended() {
  static auto* states = new std::vector<PyThreadState*>;  // leaked: threads may outlive static destructors
  return *states;
}

int delete_ended(void*) {
  std::vector<PyThreadState*> states;
  {
    std::lock_guard lock(ended_mutex);
    states.swap(ended());
  }
  for (PyThreadState* state : states) {
    PyThreadState_Clear(state);
    PyThreadState_Delete(state);
  }
  return 0;
}

struct KeptState {
  KeptState() {
    PyGILState_Ensure();
    state = PyEval_SaveThread();
  }
  // Whoever joins this thread may hold the interpreter lock: it is not waited for.
  ~KeptState() {
    if (interpreter_is_gone()) return;
    {
      std::lock_guard lock(ended_mutex);
      ended().push_back(state);
    }
    Py_AddPendingCall(&delete_ended, nullptr);
  }
  PyThreadState* state;
};

std::atomic<int> inside{0};  // routines that run, or wait for the interpreter lock
std::atomic<bool> closed{false};
std::thread::id closer;  // written before `closed`

// True if the interpreter was closed by another thread, or is gone. The thread that closed it still runs the remaining
// code.
bool is_over() { return closed.load() && (std::this_thread::get_id() != closer || interpreter_is_gone()); }

PyThreadState* keep_state() {
  thread_local const KeptState kept;
  return kept.state;
}

}  // namespace

[[gnu::hot]] RoutineEntry::RoutineEntry() {
  ++inside;
  refused_ = is_over();
  if (refused_) return;
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (pybind11::detail::get_thread_state_unchecked() == thread && thread) return;  // it has the lock
  PyEval_RestoreThread(thread ? thread : keep_state());
  locked_ = true;
}

[[gnu::hot]] RoutineEntry::~RoutineEntry() {
  if (locked_) PyEval_SaveThread();
  --inside;
}

void refuse_routines_of_others() {
  constexpr std::chrono::seconds kLongest{2};
  closer = std::this_thread::get_id();
  closed = true;
  PyThreadState* here = PyEval_SaveThread();
  const auto start = std::chrono::steady_clock::now();
  while (inside > 0 && std::chrono::steady_clock::now() - start < kLongest) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  PyEval_RestoreThread(here);
}

}  // namespace amanda::python
