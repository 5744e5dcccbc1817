// Shows the reference driver's operands to Python: arrays as Array, lists as lists, numbers as float.
#pragma once

#include <pybind11/pybind11.h>

#include "amanda/reference/operand.h"
#include "driver.h"
#include "python_bridge.h"

namespace amanda::reference {

namespace py = pybind11;

py::object to_object(const Operand& operand);
/// Throws python::ConversionError for an object that cannot be an operand.
Operand to_operand(py::handle object);

/// One for each of the driver's backends.
class Bridge final : public python::PythonBridge {
 public:
  explicit Bridge(Driver& driver) : driver_(driver) {}

  PyObject* to_python(OpSite& site, Side side, size_t position) override;
  PyObject* forward_to_python(OpSite& site, Side side, size_t position) override;
  void from_python(OpSite& site, Side side, size_t position, PyObject* object,
                   const std::function<void(Value)>& put) override;
  PyObject* call(OpType type, OpId id, PyObject* args, PyObject* kwargs) override;
  bool is_list(OpSite& site, Side side, size_t position) override;
  bool is_operand(OpSite& site, size_t position, PyObject* object) override;
  bool is_result(OpSite&, size_t, PyObject*) override { return false; }  // call() returns the results themselves
  PyObject* python_exception(const std::exception_ptr& error) override;
  [[noreturn]] void raise_error() override { throw py::error_already_set(); }

 private:
  Driver& driver_;
};

}  // namespace amanda::reference
