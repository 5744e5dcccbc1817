// Python callables as the core's analyses.
#pragma once

#include "module.h"

namespace amanda::python {

/// An analysis routine in Python.
class PyAnalysis final : public Analysis {
 public:
  explicit PyAnalysis(py::object callable) : callable_(callable.release().ptr()) {}

  void operator()(OpContext& context) override;
  bool is_failure(const std::exception_ptr& error) const override { return python::is_failure(error); }
  int traverse(visitproc visit, void* arg) const;
  void clear() { callable_.reset(); }

 private:
  PyRef callable_;
};

}  // namespace amanda::python
