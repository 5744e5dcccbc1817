#include "graph_site.h"

#include <fmt/format.h>

#include "graph_handles.h"

namespace amanda::python {
namespace {

PyObject* owned(py::object object) { return object.release().ptr(); }

const char* name_of(Point point) {
  switch (point) {
    case Point::kBefore: return "before";
    case Point::kReplace: return "replace";
    case Point::kAfter: return "after";
  }
  return "";
}

}  // namespace

PyOpSite::PyOpSite(PyGraphBackend& backend, OpType type, OpId id, py::tuple inputs, py::tuple outputs,
                   std::string module_path, std::string source, py::object refuse, std::shared_ptr<PyOpSite> forward)
    : backend_(backend),
      type_(type),
      id_(id),
      inputs_(owned(std::move(inputs))),
      outputs_(owned(std::move(outputs))),
      module_path_(std::move(module_path)),
      source_(std::move(source)),
      refuse_(refuse.is_none() ? nullptr : owned(std::move(refuse))),
      forward_(std::move(forward)) {
  backend.info(type);  // it must be known
}

Value PyOpSite::get(Side side, size_t position) {
  if (position >= size(side)) return {};
  PyObject* operand = PyTuple_GET_ITEM(operands(side), position);
  return {operand == Py_None ? nullptr : operand};
}

std::string PyOpSite::detail(Detail which) {
  switch (which) {
    case Detail::kModulePath: return module_path_;
    case Detail::kSource: return source_;
    case Detail::kIsRecompute: return "";
  }
  return "";
}

std::string PyOpSite::refusal(const ActionInfo& action, size_t position) const {
  if (!refuse_) return "";
  py::gil_scoped_acquire gil;  // at analysis only
  const py::object reason = py::reinterpret_borrow<py::object>(refuse_.get())(name_of(action.point), position);
  return reason.is_none() ? "" : text_of(reason);
}

void PyGraphSite::each_op(GraphVisitor& visitor) {
  py::gil_scoped_acquire gil;
  self_.attr("each_op")(py::cast(&visitor, py::return_value_policy::reference));
}

std::shared_ptr<void> PyGraphSite::lower(const std::vector<SitePlan>& sites) {
  py::gil_scoped_acquire gil;
  py::list plans;
  for (const SitePlan& site : sites) {
    py::list taps;
    for (const TapPtr& tap : site.taps) taps.append(TapHandle{tap});
    plans.append(py::make_tuple(site.index, taps));
  }
  try {
    py::object lowered = self_.attr("lower")(plans);
    if (lowered.is_none()) return nullptr;
    return {lowered.release().ptr(), [](void* object) { release(static_cast<PyObject*>(object)); }};
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw PythonInterrupt{std::make_shared<py::error_already_set>(error)};
    throw Error(fmt::format("{}: {}", text_of(error.type().attr("__name__")), text_of(py::str(error.value()))));
  }
}

void bind_graph_site(py::module_& m) {
  py::class_<PyOpSite, std::shared_ptr<PyOpSite>>(m, "OpSite", "One operator of a graph, as tools see it.")
      .def(py::init<PyGraphBackend&, OpType, OpId, py::tuple, py::tuple, std::string, std::string, py::object,
                    std::shared_ptr<PyOpSite>>(),
           py::arg("backend"), py::arg("type"), py::arg("id"), py::arg("inputs"), py::arg("outputs"), py::kw_only(),
           py::arg("module_path") = "", py::arg("source") = "", py::arg("refuse") = py::none(),
           py::arg("forward") = std::shared_ptr<PyOpSite>(),
           "`inputs`, `outputs`: symbols of the graph; of a backward operator (which has a `forward` one) its "
           "grad_outputs and grad_inputs. `refuse(point, position)` says why an edit or a replacement is impossible, "
           "or None.");
  py::class_<GraphVisitor, std::unique_ptr<GraphVisitor, py::nodelete>>(m, "GraphVisitor",
                                                                        "What each_op() shows a graph to.")
      .def(
          "op",
          [](GraphVisitor& visitor, PyOpSite& site) {
            py::gil_scoped_release unlocked;  // analyses in C++ need no lock, those in Python take it
            visitor.op(site);
          },
          py::arg("site"), "Shows an operator; its analyses run.")
      .def("unseen", &GraphVisitor::unseen, py::arg("what"), py::arg("reason"),
           "Tells of something that runs and that tools are not shown.");
}

}  // namespace amanda::python
