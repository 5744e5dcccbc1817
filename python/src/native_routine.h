// Routines in C++ that a tool in Python schedules.
#pragma once

#include "amanda/routine_capsule.h"
#include "routine.h"

namespace amanda::python {

/// As Python holds one until it is scheduled.
struct NativeRoutineObject {
  NativeRoutine native;
  py::object otherwise;  // None: there is none
  bool edits = false;    // it may replace what was selected
};

/// Runs in C++, and in Python only where that declines.
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
