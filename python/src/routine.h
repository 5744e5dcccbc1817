// Python callables as the core's routines.
#pragma once

#include "module.h"

namespace amanda::python {

/// The call that a routine in Python works on, on this thread. Null if none runs.
OpCall* running_call();

/// An instrumentation routine in Python.
class PyRoutine : public Routine {
 public:
  /// `kwargs`: a dict whose items are passed to the routine on each call. `inputs_name`: the keyword for inputs that
  /// are shown to it in addition to the results, or null.
  PyRoutine(py::object callable, const py::dict& kwargs, bool with_run, const char* inputs_name = nullptr);

  void operator()(Values& values) override;
  std::string name() const override { return name_; }
  bool is_failure(const std::exception_ptr& error) const override { return python::is_failure(error); }
  void retire() override;
  bool uses_run() const override { return with_run_; }
  int traverse(visitproc visit, void* arg) const;

 private:
  void put_edits(Values& values, PyObject** operands, PyObject* result);
  void put_results(Values& values, PyObject** operands, PyObject* result);

  PyRef callable_;
  PyRef names_;   // of the keywords, as vectorcall takes them; null if there are none
  PyRef values_;  // a tuple
  const bool with_run_, shows_inputs_;
  std::string name_;
};

}  // namespace amanda::python
