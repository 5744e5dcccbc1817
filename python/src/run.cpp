// Runs in Python: the class itself is amanda/op_run.py.
#include "run.h"

#include <fmt/format.h>

namespace amanda::python {
namespace {

PyRef& run_class() {
  static auto* held = new PyRef;
  return *held;
}

// The value in new containers, with objects that lead to a graph replaced. Null if no object leads to one.
py::object without_graph(PythonBridge& bridge, py::handle value, int depth) {
  constexpr int kMostDepth = 8;  // a list may hold itself
  if (PyObject* other = bridge.without_graph(value.ptr())) return py::reinterpret_steal<py::object>(other);
  if (depth == kMostDepth) return {};
  if (PyDict_CheckExact(value.ptr())) {
    py::dict other = py::reinterpret_steal<py::dict>(PyDict_Copy(value.ptr()));
    bool changed = false;
    for (auto [key, item] : py::reinterpret_borrow<py::dict>(value)) {
      const py::object replaced = without_graph(bridge, item, depth + 1);
      if (!replaced) continue;
      other[key] = replaced;
      changed = true;
    }
    return changed ? py::object(other) : py::object();
  }
  const bool is_list = PyList_CheckExact(value.ptr());
  if (!is_list && !PyTuple_CheckExact(value.ptr())) return {};
  py::list other = py::reinterpret_steal<py::list>(PySequence_List(value.ptr()));
  bool changed = false;
  for (size_t i = 0; i < other.size(); ++i) {
    const py::object replaced = without_graph(bridge, py::object(other[i]), depth + 1);
    if (!replaced) continue;
    other[i] = replaced;
    changed = true;
  }
  if (!changed) return {};
  return is_list ? py::object(other) : py::object(py::tuple(other));
}

struct SharedRun {
  // A result that it holds leads to the graph that holds this: no collector would see that circle.
  void settle(OpCall& call) {
    py::gil_scoped_acquire gil;
    const auto run = py::reinterpret_borrow<py::dict>(object.get());
    if (!run || run.empty()) return;
    const py::error_scope raised;
    try {
      PythonBridge& bridge = bridge_of(call.backend());
      const py::list keys = py::reinterpret_steal<py::list>(PyDict_Keys(run.ptr()));
      for (py::handle key : keys) {
        if (!run.contains(key)) continue;
        const py::object value = run[key];
        if (const py::object other = without_graph(bridge, value, 0)) run[key] = other;
      }
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("amanda: a run");
    }
  }

  PyRef object;
};

}  // namespace

PyObject* run_of(Values& values) {
  auto& shared = values.run<SharedRun>();
  if (!shared.object) {
    OpCall& call = values.call();
    const std::optional<uint64_t> index = values.run_index();
    const OpInfo& op = call.backend().info(call.forward_type());
    py::object made = py::handle(run_class().get())(index ? py::object(py::int_(*index)) : py::none(),
                                                    py::int_(call.forward_id()), op.ns + "::" + op.name);
    if (!shared.object) shared.object = PyRef(made.release().ptr());  // another thread may have been quicker
  }
  return Py_NewRef(shared.object.get());
}

void bind_run(py::module_& m) {
  m.def(
      "set_run_class", [](py::object cls) { run_class() = PyRef(cls.release().ptr()); }, py::arg("cls"),
      "The class of runs; it is constructed with index, op_id and the operator's name.");
}

}  // namespace amanda::python
