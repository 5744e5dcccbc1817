#include "analysis.h"

#include <fmt/format.h>

#include "op_context.h"

namespace amanda::python {

int PyAnalysis::traverse(visitproc visit, void* arg) const {
  Py_VISIT(callable_.get());
  return 0;
}

void PyAnalysis::operator()(OpContext& context) {
  py::gil_scoped_acquire gil;
  drain_released();
  const py::object callable = py::reinterpret_borrow<py::object>(callable_.get());
  if (!callable) return;  // the tool was collected
  ContextFaceSync face(context);
  PyObject* result = PyObject_CallOneArg(callable.ptr(), face.object());
  if (!result) {
    face.bring_back_after_error();
    add_note(fmt::format("[amanda] in tool '{}': analysis of {}", context.tool().name(), context.where()));
    bridge_of(context.backend()).raise_error();
  }
  Py_DECREF(result);
  face.bring_back();
}

}  // namespace amanda::python
