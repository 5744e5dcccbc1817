// Finds mistakes of a routine when it is scheduled: looks at its signature, once for all calls that are alike.
#pragma once

#include "context_handle.h"

namespace amanda::python {

/// The arguments of a method of an OpContext.
struct ScheduleCall {
  const char* method;
  const py::object& fn;
  const py::object& positions;  // a list of positions and names, or None
  bool with_run;
  const py::dict& kwargs;
  const py::object& shown;  // what is selected only to look at, or None
};

/// Throws what amanda.core.routine_checks raises if the routine can't take what it will be given, after it has removed
/// the action.
Action checked(const ContextHandle& context, const ScheduleCall& call, Action action);

/// True if this routine only looks at its operands. Takes long.
bool only_looks(const py::object& fn);

void bind_routine_check(py::module_& m);

}  // namespace amanda::python
