// Python callables as the core's routines.
#pragma once

#include "module.h"

namespace amanda::python {

/// An instrumentation routine in Python.
class PyRoutine final : public Routine {
 public:
  /// `kwargs`: a dict whose items are passed to the routine on each call.
  PyRoutine(py::object callable, const py::dict& kwargs, bool with_run);

  void operator()(Values& values) override;
  std::string name() const override { return name_; }
  bool is_failure(const std::exception_ptr& error) const override { return python::is_failure(error); }
  void retire() override;
  int traverse(visitproc visit, void* arg) const;

 private:
  void put_edits(Values& values, PyObject** operands, PyObject* result);
  void put_results(Values& values, PyObject** operands, PyObject* result);

  PyRef callable_;
  PyRef names_;   // of the keywords, as vectorcall takes them; null: none
  PyRef values_;  // a tuple
  bool with_run_;
  std::string name_;
};

}  // namespace amanda::python
