#include "graph_site.h"

#include <fmt/format.h>

#include "collected.h"
#include "graph_handles.h"
#include "graph_operator.h"

namespace amanda::python {
namespace {

PyObject* owned(py::object object) { return object.release().ptr(); }

GraphVisitor& visitor_of(const VisitorHandle& handle) {
  if (handle.visitor) return *handle.visitor;
  throw Error("[graph] each_op() has returned, and its visitor takes no more operators; show them in each_op()");
}

}  // namespace

PyOpSite::PyOpSite(PyGraphBackend& backend, OpType type, OpId id, py::tuple inputs, py::tuple outputs,
                   std::string module_path, std::string source, py::object refuse, py::object forward,
                   py::object attribute)
    : backend_(backend),
      type_(type),
      id_(id),
      inputs_(owned(std::move(inputs))),
      outputs_(owned(std::move(outputs))),
      module_path_(std::move(module_path)),
      source_(std::move(source)),
      refuse_(refuse.is_none() ? nullptr : owned(std::move(refuse))),
      attribute_(attribute.is_none() ? nullptr : owned(std::move(attribute))),
      forward_object_(forward.is_none() ? nullptr : owned(forward)),
      forward_(forward_of(forward)) {
  backend.info(type);  // it must be known
}

PyOpSite* PyOpSite::forward_of(const py::object& forward) {
  if (forward.is_none()) return nullptr;
  if (py::isinstance<PyOpSite>(forward)) return &forward.cast<PyOpSite&>();
  throw py::type_error("[graph] forward= takes the OpSite of the forward operator, got " + text_of(py::repr(forward)));
}

Value PyOpSite::get(Side side, size_t position) {
  if (position >= size(side)) return {};
  PyObject* operand = PyTuple_GET_ITEM(operands(side), position);
  return value_of(operand);
}

std::string PyOpSite::detail(Detail which) {
  switch (which) {
    case Detail::kModulePath: return module_path_;
    case Detail::kSource: return source_;
    case Detail::kIsRecompute: return "";
  }
  return "";
}

std::string PyOpSite::attribute(std::string_view name) {
  if (!attribute_) return "";
  py::gil_scoped_acquire gil;
  const py::object found = py::reinterpret_borrow<py::object>(attribute_.get())(name);
  return found.is_none() ? "" : text_of(py::str(found));
}

std::string PyOpSite::refusal(const ActionInfo& action, size_t position) const {
  if (!refuse_) return "";
  py::gil_scoped_acquire gil;  // at analysis only
  const py::object reason = py::reinterpret_borrow<py::object>(refuse_.get())(name_of(action.point), position);
  return reason.is_none() ? "" : text_of(reason);
}

int PyOpSite::traverse(visitproc visit, void* arg) const {
  Py_VISIT(inputs_.get());
  Py_VISIT(outputs_.get());
  Py_VISIT(refuse_.get());
  Py_VISIT(attribute_.get());
  Py_VISIT(forward_object_.get());
  return 0;
}

void PyOpSite::clear() {
  inputs_.reset();
  outputs_.reset();
  refuse_.reset();
  attribute_.reset();
}

void PyGraphSite::each_op(GraphVisitor& visitor) {
  py::gil_scoped_acquire gil;
  const auto handle = std::make_shared<VisitorHandle>(VisitorHandle{&visitor});
  struct Ended {
    ~Ended() { handle.visitor = nullptr; }
    VisitorHandle& handle;
  } ended{*handle};
  self_.attr("each_op")(handle);
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
  py::class_<PyOpSite>(m, "OpSite", "One operator of a graph, as tools see it.", collected<PyOpSite>())
      .def(py::init<PyGraphBackend&, OpType, OpId, py::tuple, py::tuple, std::string, std::string, py::object,
                    py::object, py::object>(),
           py::arg("backend"), py::arg("type"), py::arg("id"), py::arg("inputs"), py::arg("outputs"), py::kw_only(),
           py::arg("module_path") = "", py::arg("source") = "", py::arg("refuse") = py::none(),
           py::arg("forward") = py::none(), py::arg("attribute") = py::none(),
           "`inputs`, `outputs`: symbols of the graph; for a backward operator (with `forward=`), its grad_outputs and "
           "grad_inputs. `refuse(point, position)` returns why an edit or a replacement is impossible, or None. "
           "`attribute(name)` returns what is fixed when the graph is built and is no operand, as text, or None.");
  py::class_<VisitorHandle, std::shared_ptr<VisitorHandle>>(m, "GraphVisitor",
                                                            "The argument of each_op(): receives a graph's operators.")
      .def(
          "op",
          [](const VisitorHandle& handle, PyOpSite& site) {
            GraphVisitor& visitor = visitor_of(handle);
            py::gil_scoped_release unlocked;  // C++ analyses need no lock, Python analyses take it
            visitor.op(site);
          },
          py::arg("site"), "Shows an operator, and runs its analyses.")
      .def(
          "unseen",
          [](const VisitorHandle& handle, std::string what, std::string reason) {
            visitor_of(handle).unseen(std::move(what), std::move(reason));
          },
          py::arg("what"), py::arg("reason"), "Reports something that runs but is not shown to tools.");
}

}  // namespace amanda::python
