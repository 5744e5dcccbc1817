// Converts a framework's operands to Python objects and back: one bridge per backend.
#pragma once

#include <Python.h>

#include <exception>
#include <functional>
#include <stdexcept>

#include "amanda/driver/backend.h"

namespace amanda::python {

/// A Python object cannot be converted to an operand; the text is a reason only.
class __attribute__((visibility("default"))) ConversionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class PythonBridge {
 public:
  virtual ~PythonBridge() = default;

  // With the interpreter lock. A failure is thrown as raise_error() throws it, or as ConversionError.
  virtual PyObject* to_python(OpSite& site, Side side, size_t position) = 0;  // a new reference
  /// A replacement is given `object`, which to_python() returned for the input at `position`.
  virtual void give_replacement(OpSite& /*site*/, size_t /*position*/, PyObject* /*object*/) {}
  /// The same as to_python() for the forward operator's operands; `site` is a backward operator.
  virtual PyObject* forward_to_python(OpSite& site, Side side, size_t position) = 0;
  /// Converts `object` for that position and passes it to `put`; the value is valid during that call.
  virtual void from_python(OpSite& site, Side side, size_t position, PyObject* object,
                           const std::function<void(Value)>& put) = 0;
  /// Runs the operator itself on Python arguments, for a call of get_op(), or of get_backward_op() while that runs.
  /// Null if it raised a Python error, which is then set.
  virtual PyObject* call(OpType type, OpId id, PyObject* args, PyObject* kwargs) = 0;
  /// True if this position takes a list.
  virtual bool is_list(OpSite& site, Side side, size_t position) = 0;
  /// `object` is the one that to_python() returned for the input at `position`. True if it is still the same operand,
  /// and nothing was recorded on it since.
  virtual bool is_operand(OpSite& site, size_t position, PyObject* object) = 0;
  /// True if `object` is the one that call() returned to the running routine for the result at `position`. An undefined
  /// result is None.
  virtual bool is_result(OpSite& site, size_t position, PyObject* object) = 0;
  /// For an object that leads to a graph, the object that the graph may keep in its place: the same value without the
  /// graph, a new reference. Null if `object` leads to no graph.
  virtual PyObject* without_graph(PyObject* /*object*/) { return nullptr; }
  /// The Python exception inside the one that raise_error() threw, a new reference; null if there is none.
  virtual PyObject* python_exception(const std::exception_ptr& error) = 0;
  /// Throws the current Python error in the form that the framework carries to its Python caller.
  [[noreturn]] virtual void raise_error() = 0;
};

inline constexpr const char* kBridgeCapsule = "amanda.bridge";
struct BridgeCapsule {  // passes the bridge of a driver's extension module to `_core`
  Backend* backend;
  PythonBridge* bridge;
};

}  // namespace amanda::python
