// Routines in C++ that a tool in Python schedules.
#pragma once

#include "amanda/routine_capsule.h"
#include "routine.h"

namespace amanda::python {

/// The form in which Python holds a routine until it is scheduled.
struct NativeRoutineObject {
  NativeRoutine native;
  py::object otherwise;  // None if there is none
  bool edits = false;    // it may replace the selected operands
};

/// Runs in C++, and in Python only where the C++ routine returns false.
class NativeFirst final : public PyRoutine {
 public:
  NativeFirst(const NativeRoutineObject& object, const py::dict& kwargs, bool with_run, const char* inputs_name)
      : PyRoutine(object.otherwise, kwargs, with_run, inputs_name), native_(object.native) {}

  void operator()(Values& values) override {
    if (!native_(values)) PyRoutine::operator()(values);
  }

 private:
  const NativeRoutine native_;
};

}  // namespace amanda::python
