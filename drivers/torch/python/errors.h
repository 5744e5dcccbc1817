// Python exceptions that leave tools' code: whether the program raised them, and how they propagate.
#pragma once

#include <Python.h>

#include <exception>

namespace amanda::python {

/// `is_programs` is the function of amanda.drivers.torch.program_errors. `methods` holds PyTorch's methods that turn a
/// TypeError into NotImplemented: method descriptors, and code objects. With the interpreter lock.
void install_errors(PyObject* is_programs, PyObject* methods);

/// The Python exception that a C++ exception carries, with its traceback, a new reference; null if it carries none.
PyObject* carried_exception(const std::exception_ptr& error);

/// Marks the current Python error as raised by an operator that a routine called.
void mark_as_operators();

/// If PyTorch would turn the current Python error, a tool's TypeError, into NotImplemented, replaces it by a
/// RuntimeError with the TypeError as its cause.
void keep_type_error();

}  // namespace amanda::python
