// Operators of a graph while it runs, for bindings: the Python side of a driver's OpCall, beyond the seam.
#pragma once

#include <Python.h>

#include <functional>
#include <string>

#include "amanda/driver/backend.h"
#include "native_operand.h"

namespace amanda::python {

/// One execution of a tap of a backend that Python made (GraphBackend). Functions that take or return Python objects
/// are called with the interpreter lock, and throw `pybind11::error_already_set` or `ConversionError`.
class __attribute__((visibility("default"))) GraphCall : public OpCall {
 public:
  // A tap has its own operands only, and no results beyond them.
  size_t forward_size(Side) const override { return 0; }
  Value forward_get(Side, size_t) override { return {}; }
  bool has_results() const override { return false; }
  void finish() override {}
  /// Changes in place are not detected, unless a driver counts them.
  uint64_t versions(Side) const override { return 0; }

  /// The operand as a routine gets it, a new reference; None for a null one.
  virtual PyObject* to_python(Side side, size_t position) = 0;
  /// Converts `object` for that operand, and passes it to `put`; the value is valid during that call.
  virtual void from_python(Side side, size_t position, PyObject* object, const std::function<void(Value)>& put) = 0;
  /// True if the operand is a list.
  virtual bool is_list(Side side, size_t position) = 0;
  /// True if to_python() returned `object` for this input.
  virtual bool is_operand(size_t position, PyObject* object) = 0;
  /// True if call_original() returned `object` for this result.
  virtual bool is_result(size_t, PyObject*) { return false; }
  /// Runs what the running replacement wraps on other arguments: a new reference to its result, a tuple of several.
  virtual PyObject* call_original(PyObject* args) = 0;
  /// Throws the current Python error in the form in which the framework carries it, if it has one.
  virtual void raise_error() {}
  /// As Backend::refusal(), for an edit of a routine that declared nothing. Without the interpreter lock.
  virtual std::string refusal(const ActionInfo& action, size_t position) const = 0;

 protected:
  ~GraphCall() = default;
};

}  // namespace amanda::python
