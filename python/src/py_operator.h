// The Python objects of an operator that a graph driver's taps run for.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "amanda/base/no_copy.h"

namespace amanda::python {

/// Owns those of a driver's Operator, which has a borrowed `refuse`. For `collected<>`: they may refer back to it.
template <class Operator>
struct PyOperator : NoCopy {
  PyOperator(std::shared_ptr<const Operator> made, pybind11::object refuse, pybind11::object forward)
      : op(std::move(made)), refuse(std::move(refuse)), forward(std::move(forward)) {
    if (!this->refuse.is_none()) op->refuse = this->refuse.ptr();
  }
  ~PyOperator() { clear(); }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(refuse.ptr());
    Py_VISIT(forward.ptr());
    return 0;
  }
  void clear() {
    op->refuse = nullptr;
    refuse = pybind11::none();
    forward = pybind11::none();
  }

  const std::shared_ptr<const Operator> op;
  pybind11::object refuse, forward;
};

}  // namespace amanda::python
