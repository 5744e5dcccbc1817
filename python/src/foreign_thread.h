// Threads that a framework made, and the end of the interpreter, which must not come while they run routines.
#pragma once

#include <Python.h>

#include "amanda/base/no_copy.h"

namespace amanda::python {

/// Around a routine in Python, on any thread: with the interpreter lock, unless it is refused.
///
/// The lock is taken with the thread's own state: PyGILState_Ensure() and pybind11's guard look up more. A thread that
/// Python does not know gets a state that lasts as long as the thread: to make one takes longer than most routines.
class RoutineEntry : NoCopy {
 public:
  RoutineEntry();
  ~RoutineEntry();

  /// The interpreter ends: no routine runs any more. A thread that waited for its lock would be ended by Python, inside
  /// the framework's code.
  bool is_refused() const { return refused_; }

 private:
  bool refused_, locked_ = false;  // locked_: taken here
};

/// At exit, on the thread that ends the interpreter, with its lock: waits for the routines of other threads, not for
/// ever, and lets none of them begin.
void refuse_routines_of_others();

}  // namespace amanda::python
