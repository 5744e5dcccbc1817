// The backend of a graph driver in Python, as Python sees it.
#include <fmt/format.h>
#include <pybind11/stl.h>

#include <map>

#include "graph_backend.h"
#include "graph_call.h"
#include "graph_handles.h"
#include "routine.h"

namespace amanda::python {
namespace {

/// A graph's symbols are Python objects; the operands of a tap are converted by its GraphCall.
class ObjectBridge final : public PythonBridge {
 public:
  PyObject* to_python(OpSite& site, Side side, size_t position) override {
    if (GraphCall* call = call_of(site)) return call->to_python(side, position);
    return shown(site.get(side, position));
  }
  PyObject* forward_to_python(OpSite& site, Side side, size_t position) override {
    return shown(site.forward_get(side, position));
  }
  // The others are for routines: their sites are taps that run.
  void from_python(OpSite& site, Side side, size_t position, PyObject* object,
                   const std::function<void(Value)>& put) override {
    running(site).from_python(side, position, object, put);
  }
  PyObject* call(OpType type, OpId id, PyObject* args, PyObject* kwargs) override {
    try {
      auto* call = running_call() ? call_of(*running_call()) : nullptr;
      if (!call || call->type() != type || call->id() != id) {
        throw Error("[graph] an operator of a graph can be called only by its own replacement, while that runs");
      }
      if (kwargs && PyDict_GET_SIZE(kwargs) > 0) {
        throw Error("[graph] an operator of a graph takes no keyword arguments");
      }
      const size_t given = PyTuple_GET_SIZE(args), needed = call->size(Side::kInputs);
      if (given != needed) {
        throw Error(
            fmt::format("[graph] {} takes {} arguments, got {}", call->backend().info(type).name, needed, given));
      }
      return call->call_original(args);
    } catch (py::error_already_set& error) {
      error.restore();
    } catch (const std::exception& error) {
      py::set_error(py::module_::import("amanda._core").attr("Error"), error.what());
    }
    return nullptr;
  }
  bool is_list(OpSite& site, Side side, size_t position) override { return running(site).is_list(side, position); }
  bool is_operand(OpSite& site, size_t position, PyObject* object) override {
    return running(site).is_operand(position, object);
  }
  bool is_result(OpSite& site, size_t position, PyObject* object) override {
    return site.phase() == Phase::kForward && running(site).is_result(position, object);
  }
  PyObject* python_exception(const std::exception_ptr&) override { return nullptr; }
  [[noreturn]] void raise_error() override {
    if (GraphCall* call = running_call() ? call_of(*running_call()) : nullptr) call->raise_error();
    throw py::error_already_set();
  }

 private:
  static GraphCall* call_of(OpSite& site) { return dynamic_cast<GraphCall*>(&site); }
  static GraphCall& running(OpSite& site) { return dynamic_cast<GraphCall&>(site); }
  static PyObject* shown(Value value) { return Py_NewRef(value.ref ? object_of(value) : Py_None); }
};

BackwardOps backward_ops(const std::string& name) {
  static const std::map<std::string, BackwardOps> kNames{{"none", BackwardOps::kNone},
                                                         {"nodes", BackwardOps::kNodes},
                                                         {"operators", BackwardOps::kOperators},
                                                         {"one", BackwardOps::kOne}};
  auto found = kNames.find(name);
  if (found != kNames.end()) return found->second;
  throw py::value_error(
      fmt::format("[graph] backward= is \"none\", \"nodes\", \"operators\" or \"one\", got \"{}\"", name));
}

}  // namespace

void bind_graph_backend(py::module_& m) {
  py::class_<PyGraphBackend, std::unique_ptr<PyGraphBackend, py::nodelete>>(
      m, "GraphBackend", "A graph driver in Python: a framework's operator types, and this thread's tools.")
      .def(py::init([](std::string name_space, const std::string& backward, bool can_replace, bool can_change_shape,
                       bool keeps_gradients, bool both_sides, const std::string& same_ids_as) {
             static auto* bridge = new ObjectBridge;
             Capabilities capabilities;
             capabilities.backward = backward_ops(backward);
             capabilities.symbolic_analysis = true;
             capabilities.can_replace = can_replace;
             capabilities.can_change_shape = can_change_shape;
             capabilities.keeps_gradients = keeps_gradients;
             capabilities.both_sides = both_sides;
             return &PyGraphBackend::make(std::move(name_space), capabilities, same_ids_as, *bridge);
           }),
           py::arg("name_space"), py::kw_only(), py::arg("backward") = "none", py::arg("can_replace") = true,
           py::arg("can_change_shape") = false, py::arg("keeps_gradients") = false, py::arg("both_sides") = false,
           py::arg("same_ids_as") = "")
      .def_property_readonly(
          "name_space", [](const PyGraphBackend& backend) { return backend.name_space(); },
          "The driver's name, as \"lists/1/graph\".")
      .def(
          "intern",
          [](PyGraphBackend& backend, std::string ns, std::string name, std::string overload,
             std::vector<std::string> inputs, std::vector<std::string> outputs, std::string schema) {
            return backend.intern({std::move(ns), std::move(name), std::move(overload), std::move(inputs),
                                   std::move(outputs), std::move(schema)});
          },
          py::arg("ns"), py::arg("name"), py::arg("overload") = "", py::kw_only(),
          py::arg("inputs") = std::vector<std::string>{}, py::arg("outputs") = std::vector<std::string>{},
          py::arg("schema") = "", "The number of an operator type, the same each time for the same name.")
      .def("describe", &PyGraphBackend::set_describe, py::arg("describe"),
           "Describes tensors to C++ tools: `describe(operand)` returns a dict with dtype, sizes (None: unknown), "
           "device, bytes and requires_grad, as far as they are known; or None. Numbers and lists describe themselves.")
      .def("name_parameters", &PyGraphBackend::set_name_parameters, py::arg("name"),
           "Tells the names of parameters to analyses: `name(symbol)` returns one, or None for any other symbol.")
      .def("on_switch", &PyGraphBackend::set_on_switch, py::arg("callback"),
           "Calls `callback()` on a thread when its scopes or tools have changed; None: no longer.")
      .def(
          "toolset",
          [](const PyGraphBackend& backend) -> std::optional<ToolsetHandle> {
            ToolsetPtr toolset = backend.toolset();
            if (!toolset) return std::nullopt;
            return ToolsetHandle{std::move(toolset)};
          },
          "The tools in force on this thread; None: no scope is open, or a tool's routine runs.")
      .def("has_scopes", &PyGraphBackend::has_scopes,
           "Are scopes open on this thread, and not switched off? Also while a routine runs.")
      .def("wants", &PyGraphBackend::wants, py::arg("type"),
           "Does a tool in force on this thread ask for this operator type?")
      .def(
          "is_asked_for",
          [](const PyGraphBackend& backend, OpType type, bool is_backward, const std::vector<uintptr_t>& tools) {
            std::vector<const Tool*> asked;
            for (const uintptr_t tool : tools) asked.push_back(reinterpret_cast<const Tool*>(tool));
            return backend.is_asked_for(type, is_backward, asked);
          },
          py::arg("type"), py::arg("is_backward"), py::arg("tools"),
          "Does one of these tools, given as numbers by Scope.tools() and in force on this thread, ask for this "
          "operator type, or for its backward operators? For coverage reports.");
}

}  // namespace amanda::python
