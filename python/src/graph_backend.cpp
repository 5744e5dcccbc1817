#include "graph_backend.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <map>
#include <mutex>

#include "amanda/engine.h"
#include "graph_site.h"
#include "tap_call.h"

namespace amanda::python {
namespace {

struct ThreadState {
  std::vector<ScopeStack*> scopes;  // by backend
  size_t routines = 0;              // that run
};
thread_local ThreadState this_thread;

/// Operands are Python objects already.
class ObjectBridge final : public PythonBridge {
 public:
  PyObject* to_python(OpSite& site, Side side, size_t position) override { return shown(site.get(side, position)); }
  PyObject* forward_to_python(OpSite& site, Side side, size_t position) override {
    return shown(site.forward_get(side, position));
  }
  void from_python(OpSite&, Side, size_t, PyObject* object, const std::function<void(Value)>& put) override {
    put({object == Py_None ? nullptr : object});
  }
  PyObject* call(OpType type, OpId id, PyObject* args, PyObject* kwargs) override {
    return TapCall::call_original(type, id, args, kwargs);
  }
  bool is_list(OpSite& site, Side side, size_t position) override {
    const Value value = site.get(side, position);
    return value.ref && PyList_Check(object_of(value));
  }
  bool is_operand(OpSite& site, size_t position, PyObject* object) override {
    return object_of(site.get(Side::kInputs, position)) == object;
  }
  bool is_result(OpSite& site, size_t position, PyObject* object) override {
    return site.phase() == Phase::kForward && object_of(site.get(Side::kOutputs, position)) == object;
  }
  PyObject* python_exception(const std::exception_ptr&) override { return nullptr; }
  [[noreturn]] void raise_error() override { throw py::error_already_set(); }

 private:
  static PyObject* shown(Value value) { return Py_NewRef(value.ref ? object_of(value) : Py_None); }
};

}  // namespace

PyGraphBackend::PyGraphBackend(std::string name_space, Capabilities capabilities)
    : name_space_(std::move(name_space)), capabilities_(capabilities) {}

PyGraphBackend& PyGraphBackend::make(std::string name_space, Capabilities capabilities,
                                     const std::string& same_ids_as) {
  const Backend* numbering = same_ids_as.empty() ? nullptr : Engine::find_backend(same_ids_as);
  if (!same_ids_as.empty() && !numbering) {
    throw Error(fmt::format("[python] '{}' cannot have the operator ids of '{}': no such driver is attached",
                            name_space, same_ids_as));
  }
  static auto* bridge = new ObjectBridge;
  auto* made = new PyGraphBackend(std::move(name_space), capabilities);
  register_bridge(*made, *bridge);
  Engine::attach(*made, kSeamVersion, numbering);
  return *made;
}

OpType PyGraphBackend::intern(OpInfo info) {
  std::lock_guard lock(mutex_);
  for (size_t type = 0; type < infos_.size(); ++type) {
    const OpInfo& known = infos_[type];
    if (known.name == info.name && known.ns == info.ns && known.overload == info.overload) return type;
  }
  infos_.push_back(std::move(info));
  return infos_.size() - 1;
}

const OpInfo& PyGraphBackend::info(OpType type) const {
  std::lock_guard lock(mutex_);
  if (type < infos_.size()) return infos_[type];
  throw Error(
      fmt::format("[python] the driver '{}' has no operator type {}; intern() gives the numbers", name_space_, type));
}

void PyGraphBackend::set_on_switch(const py::object& callback) {
  on_switch_ = PyRef(callback.is_none() ? nullptr : py::object(callback).release().ptr());
}

ToolsetPtr PyGraphBackend::toolset() const {
  const ThreadState& here = this_thread;
  if (here.routines > 0 || here.scopes.size() <= index() || !here.scopes[index()]) return nullptr;
  return Engine::toolset(*here.scopes[index()]);
}

void PyGraphBackend::switch_to(ScopeStack* scopes) {
  auto& known = this_thread.scopes;
  if (known.size() <= index()) known.resize(index() + 1);
  known[index()] = scopes;
  if (!on_switch_) return;
  py::gil_scoped_acquire gil;
  py::reinterpret_borrow<py::object>(on_switch_.get())();
}

void* PyGraphBackend::begin_routines(RoutineMode) {
  ++this_thread.routines;
  return nullptr;
}
void PyGraphBackend::end_routines(void*) noexcept { --this_thread.routines; }

std::string PyGraphBackend::refusal(OpSite& site, const ActionInfo& action, size_t position) const {
  const auto* ours = dynamic_cast<const PyOpSite*>(&site);
  return ours ? ours->refusal(action, position) : "";
}

namespace {

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
                       bool keeps_gradients, const std::string& same_ids_as) {
             Capabilities capabilities;
             capabilities.backward = backward_ops(backward);
             capabilities.symbolic_analysis = true;
             capabilities.can_replace = can_replace;
             capabilities.can_change_shape = can_change_shape;
             capabilities.keeps_gradients = keeps_gradients;
             return &PyGraphBackend::make(std::move(name_space), capabilities, same_ids_as);
           }),
           py::arg("name_space"), py::kw_only(), py::arg("backward") = "none", py::arg("can_replace") = true,
           py::arg("can_change_shape") = false, py::arg("keeps_gradients") = false, py::arg("same_ids_as") = "")
      .def_property_readonly("name_space", [](const PyGraphBackend& backend) { return backend.name_space(); })
      .def(
          "intern",
          [](PyGraphBackend& backend, std::string ns, std::string name, std::string overload,
             std::vector<std::string> inputs, std::vector<std::string> outputs, std::string schema) {
            return backend.intern({std::move(ns), std::move(name), std::move(overload), std::move(inputs),
                                   std::move(outputs), std::move(schema)});
          },
          py::arg("ns"), py::arg("name"), py::arg("overload") = "", py::kw_only(),
          py::arg("inputs") = std::vector<std::string>{}, py::arg("outputs") = std::vector<std::string>{},
          py::arg("schema") = "", "The number of an operator type.")
      .def("on_switch", &PyGraphBackend::set_on_switch, py::arg("callback"),
           "`callback()` runs on a thread whose scopes or tools have changed.")
      .def(
          "toolset",
          [](const PyGraphBackend& backend) -> std::optional<ToolsetHandle> {
            ToolsetPtr toolset = backend.toolset();
            if (!toolset) return std::nullopt;
            return ToolsetHandle{std::move(toolset)};
          },
          "The tools in force on this thread; None: no scope is open, or a tool's routine runs.");
}

}  // namespace amanda::python
