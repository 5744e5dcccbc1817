// Toolsets in Python.
#include "graph_handles.h"
#include "module.h"

namespace amanda::python {

void bind_toolset(py::module_& m) {
  py::class_<ToolsetHandle>(m, "Toolset", "The tools in force at one place of the program; a key for caches of graphs.")
      .def_property_readonly(
          "key", [](const ToolsetHandle& h) { return h.toolset->key(); }, "A number, never used again in this process.")
      .def(
          "is_over", [](const ToolsetHandle& h) { return h.toolset->is_over(); },
          "Will it never be returned again? What is cached under it may then be released.")
      .def("__eq__", [](const ToolsetHandle& a, const ToolsetHandle& b) { return a.toolset == b.toolset; })
      .def("__eq__", [](const ToolsetHandle&, const py::object&) { return false; })
      .def("__hash__", [](const ToolsetHandle& h) { return h.toolset->key(); });
}

}  // namespace amanda::python
