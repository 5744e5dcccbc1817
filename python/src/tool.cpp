#include <fmt/format.h>
#include <pybind11/stl.h>

#include "amanda/tool_capsule.h"
#include "analysis.h"

namespace amanda::python {
namespace {

constexpr const char* kAdoptedToolCapsule = "amanda.tool (adopted)";

/// The core's side of a Python tool; the Python object owns it and is reached weakly.
class PyTool final : public Tool {
 public:
  PyTool(const py::object& owner, std::string name)
      : Tool(std::move(name)), owner_(PyWeakref_NewRef(owner.ptr(), nullptr)) {
    if (!owner_) throw py::error_already_set();
  }

  void on_enter(Scope&) override { tell("on_enter", nullptr); }
  void on_exit(Scope&, const std::exception_ptr& error) override { tell("on_exit", &error); }
  void on_disable(const std::exception_ptr& error) override { tell("on_disable", &error); }

  // Calls the weak reference: the functions that dereference one differ between versions of Python.
  py::object owner() const { return py::reinterpret_steal<py::object>(PyObject_CallNoArgs(owner_.get())); }

 private:
  void tell(const char* method, const std::exception_ptr* error) {
    py::gil_scoped_acquire gil;
    const py::object tool = owner();
    if (tool.is_none()) return;
    if (error) {
      tool.attr("_tell")(method, python_exception(*error));
    } else {
      tool.attr("_tell")(method);
    }
  }

  PyRef owner_;
};

std::unique_ptr<Tool> adopt_tool(const py::object& capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kAdoptedToolCapsule)) {
    throw Error("[tool] the tool in this capsule has an owner already; make another one");
  }
  if (!PyCapsule_IsValid(capsule.ptr(), kToolCapsule)) {
    throw py::type_error(fmt::format("[tool] a C++ tool comes in a capsule named '{}', got {}", kToolCapsule,
                                     text_of(py::repr(capsule))));
  }
  std::unique_ptr<Tool> tool(static_cast<Tool*>(PyCapsule_GetPointer(capsule.ptr(), kToolCapsule)));
  PyCapsule_SetDestructor(capsule.ptr(), nullptr);
  PyCapsule_SetName(capsule.ptr(), kAdoptedToolCapsule);
  return tool;
}

OpFilter filter(const py::object& ops) {
  if (ops.is_none()) return {};
  std::vector<std::string> patterns;
  for (py::handle pattern : ops) patterns.push_back(text_of(pattern));
  return OpFilter(std::move(patterns));
}

ModuleFilter module_filter(const std::optional<std::vector<std::string>>& modules) {
  return modules ? ModuleFilter(*modules) : ModuleFilter();
}

template <class Fn>
void each_analysis(const Tool& tool, const Fn& fn) {
  for (const Registration& registration : *tool.registrations()) {
    if (auto* analysis = dynamic_cast<PyAnalysis*>(registration.analysis.get())) fn(*analysis);
  }
}

// Tools hold bound methods of themselves: the collector must see these cycles.
void collect_garbage(PyHeapTypeObject* heap_type) {
  PyTypeObject* type = &heap_type->ht_type;
  type->tp_flags |= Py_TPFLAGS_HAVE_GC;
  type->tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!py::detail::is_holder_constructed(self)) return 0;
    int stop = 0;
    each_analysis(py::cast<Tool&>(py::handle(self)), [&](PyAnalysis& analysis) {
      if (!stop) stop = analysis.traverse(visit, arg);
    });
    return stop;
  };
  type->tp_clear = [](PyObject* self) {
    if (py::detail::is_holder_constructed(self)) {
      each_analysis(py::cast<Tool&>(py::handle(self)), [](PyAnalysis& analysis) { analysis.clear(); });
    }
    return 0;
  };
}

}  // namespace

py::object owner_of(const Tool& tool) {
  const auto* python_tool = dynamic_cast<const PyTool*>(&tool);
  return python_tool ? python_tool->owner() : py::none();
}

void bind_tool(py::module_& m) {
  py::class_<Tool, std::unique_ptr<Tool>>(m, "Tool", "The core's side of a tool; amanda.Tool holds one.",
                                          py::custom_type_setup(&collect_garbage))
      .def(py::init([](const py::object& owner, const py::str& name) -> std::unique_ptr<Tool> {
             return std::make_unique<PyTool>(owner, text_of(name));
           }),
           py::arg("owner"), py::arg("name"))
      .def_property_readonly("name", &Tool::name)
      .def(
          "add_inst_for_op",
          [](Tool& tool, py::object callback, bool backward, bool require_outputs, const py::object& ops,
             bool on_demand, bool nested, const std::optional<std::vector<std::string>>& modules, bool optional) {
            InstOptions options{.backward = backward,
                                .require_outputs = require_outputs,
                                .ops = on_demand ? OpFilter::on_demand() : filter(ops),
                                .nested = nested,
                                .modules = module_filter(modules),
                                .optional = optional};
            tool.add_inst_for_op(std::make_shared<PyAnalysis>(std::move(callback)), std::move(options));
          },
          py::arg("callback"), py::arg("backward"), py::arg("require_outputs"), py::arg("ops"), py::arg("on_demand"),
          py::arg("nested"), py::arg("modules"), py::arg("optional"))
      .def(
          "narrow",
          [](Tool& tool, const py::object& ops, const std::optional<std::vector<std::string>>& modules) {
            tool.narrow(filter(ops), module_filter(modules));
          },
          py::arg("ops"), py::arg("modules"))
      .def("depends_on", &Tool::depends_on, py::arg("tool"))
      .def(
          "analysed",
          [](const Tool& tool) { return std::pair(tool.analysed(Phase::kForward), tool.analysed(Phase::kBackward)); },
          "How many operators its analyses have looked at: forward, backward.")
      .def("forget_analysed", &Tool::forget_analysed, py::call_guard<py::gil_scoped_release>(), "Counts them anew.");
  m.def("adopt_tool", &adopt_tool, py::arg("capsule"), "Takes a C++ tool out of its capsule, and owns it.");
}

}  // namespace amanda::python
