// Converts PyTorch's operands to Python objects and back.
#pragma once

// torch's pybind11 and Python headers come first.
#include <torch/csrc/utils/pybind.h>

#include "python_bridge.h"

namespace amanda::python {

class TorchBridge final : public PythonBridge {
 public:
  PyObject* to_python(OpSite& site, Side side, size_t position) override;
  void give_replacement(OpSite& site, size_t position, PyObject* object) override;
  PyObject* forward_to_python(OpSite& site, Side side, size_t position) override;
  void from_python(OpSite& site, Side side, size_t position, PyObject* object,
                   const std::function<void(Value)>& put) override;
  PyObject* call(OpType type, OpId id, PyObject* args, PyObject* kwargs) override;
  bool is_list(OpSite& site, Side side, size_t position) override;
  bool is_operand(OpSite& site, size_t position, PyObject* object) override;
  bool is_result(OpSite& site, size_t position, PyObject* object) override;
  PyObject* without_graph(PyObject* object) override;
  PyObject* python_exception(const std::exception_ptr& error) override;
  [[noreturn]] void raise_error() override;
};

}  // namespace amanda::python
