// Functions that the files of `_core` share.
#pragma once

#include <pybind11/pybind11.h>

#include "amanda/amanda.h"
#include "python_bridge.h"
#include "python_ref.h"

namespace amanda::python {

namespace py = pybind11;

void bind_action(py::module_& m);
void bind_artifact(py::module_& m);
void bind_code_position(py::module_& m);
void bind_graph_backend(py::module_& m);
void bind_graph_site(py::module_& m);
void bind_op_context(py::module_& m);
void bind_run(py::module_& m);
void bind_scope(py::module_& m);
void bind_tap(py::module_& m);
void bind_tool(py::module_& m);
void bind_toolset(py::module_& m);
void bind_value_info(py::module_& m);

void register_bridge(const Backend& backend, PythonBridge& bridge);
/// The bridge of a backend. Throws `Error` if its extension module was not loaded.
PythonBridge& bridge_of(const Backend& backend);

/// The Python exception that `error` is or carries; None for null, a RuntimeError for a C++ exception.
py::object python_exception(const std::exception_ptr& error);

/// The Python object of a core tool; None for a C++ tool.
py::object owner_of(const Tool& tool);

/// A Python string for messages and names. Characters that UTF-8 cannot encode are escaped.
std::string text_of(py::handle text);
/// Adds "[amanda] in tool 'prune', ..." to the current Python error.
void add_note(const std::string& note);
/// True if it is an `Exception` in Python, not an interrupt or an exit.
bool is_failure(const std::exception_ptr& error);

}  // namespace amanda::python
