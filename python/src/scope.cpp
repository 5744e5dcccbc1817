#include "amanda/scope.h"

#include <pybind11/stl.h>

#include "collected.h"
#include "op_context.h"
#include "routine.h"

namespace amanda::python {
namespace {

/// An exception from Python code, for tools that are notified of it.
std::exception_ptr as_exception(const py::object& error) {
  if (error.is_none()) return nullptr;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  return std::make_exception_ptr(py::error_already_set());
}

/// Keeps the Python objects of its tools alive while a thread uses them.
class PyScope final : public Scope {
 public:
  PyScope(const std::vector<Tool*>& tools, const py::object& owners, OnError on_error)
      : PyScope(tools, std::make_shared<const PyRef>(py::object(owners).release().ptr()), on_error) {}

  int traverse(visitproc visit, void* arg) const {
    if (!in_use()) Py_VISIT(owners_->get());  // otherwise other owners hold them too
    int stop = 0;
    Scope::visit(
        [&](Routine& routine) {
          if (auto* ours = dynamic_cast<PyRoutine*>(&routine); ours && !stop) stop = ours->traverse(visit, arg);
        },
        [&](OpContext& context) {
          if (auto* ours = dynamic_cast<PyContextFace*>(context.face().get()); ours && !stop) {
            stop = ours->traverse(visit, arg);
          }
        });
    return stop;
  }
  void clear() { cache_clear(); }

 private:
  PyScope(const std::vector<Tool*>& tools, std::shared_ptr<const PyRef> owners, OnError on_error)
      : Scope(tools, ScopeOptions{on_error, owners}), owners_(std::move(owners)) {}

  const std::shared_ptr<const PyRef> owners_;
};

}  // namespace

void bind_scope(py::module_& m) {
  py::class_<CacheInfo>(m, "CacheInfo", "What a scope's cache did so far.")
      .def_readonly("hits", &CacheInfo::hits, "Operator runs that needed no analysis.")
      .def_readonly("misses", &CacheInfo::misses, "Analysis routines run.")
      .def_property_readonly(
          "maxsize", [](const CacheInfo&) { return kMaxEmptyRecords; },
          "Of operators on which nothing was scheduled and no key was left; all others are kept.")
      .def_readonly("currsize", &CacheInfo::size, "Operators known.")
      .def("__repr__", [](const CacheInfo& info) {
        return py::str("CacheInfo(hits={}, misses={}, maxsize={}, currsize={})")
            .format(info.hits, info.misses, kMaxEmptyRecords, info.size);
      });

  py::class_<Unmatched>(m, "Unmatched", "An analysis routine that no operator met in a scope in which operators ran.")
      .def_property_readonly("tool", [](const Unmatched& one) { return one.tool->name(); })
      .def_property_readonly(
          "ops", [](const Unmatched& one) { return one.options.ops.patterns(); }, "Empty: every operator.")
      .def_property_readonly(
          "modules", [](const Unmatched& one) { return one.options.modules.patterns(); }, "Empty: everywhere.")
      .def_readonly("ops_matched", &Unmatched::ops_matched, "Its operators ran, in other modules only.")
      .def_readonly("elsewhere", &Unmatched::elsewhere, "The paths of these, not all if they are many.");

  py::class_<PyScope>(m, "Scope", "The core's side of a scope; amanda.Scope holds one.", collected<PyScope>())
      .def(py::init([](const std::vector<Tool*>& tools, const py::object& owners, bool disable_on_error) {
             return std::make_unique<PyScope>(tools, owners, disable_on_error ? OnError::kDisable : OnError::kRaise);
           }),
           py::arg("tools"), py::arg("owners"), py::arg("disable_on_error"),
           "`owners`: keeps the tools alive, and is kept alive while they are in use.")
      .def("enter", [](PyScope& scope) { return scope.enter_entry(); })
      .def(
          "leave",
          [](PyScope& scope, uint64_t entry, const py::object& error) {
            ScopeRemarks remarks = scope.leave_entry(entry, as_exception(error));
            return std::pair(std::move(remarks.unmatched), std::move(remarks.elsewhere));
          },
          py::arg("entry"), py::arg("error"),
          "Returns what to warn of: filters that matched nothing; the operator that ran on a thread without scopes.")
      .def(
          "analysed_types", [](const PyScope& scope) { return scope.analysed_types(); },
          "Forward operators that its tools analysed, by name, and the number of their places; most first.")
      .def(
          "tools",
          [](const PyScope& scope) {
            py::list tools;
            for (const Tool* tool : scope.tools()) tools.append(reinterpret_cast<uintptr_t>(tool));
            return tools;
          },
          "For drivers: its tools, dependencies included, as numbers to compare.")
      .def(
          "describe", [](const PyScope& scope) { return scope.describe(); },
          "What analyses have scheduled; see amanda.Scope.describe.")
      .def(
          "stopped_tools",
          [](const PyScope& scope) {
            std::vector<std::string> names;
            for (const Tool* tool : scope.stopped_tools()) names.push_back(tool->name());
            return names;
          },
          "The names of the tools that failed and run no more.")
      .def("cache_info", [](const PyScope& scope) { return scope.cache_info(); })
      .def(
          "cache_clear", [](PyScope& scope, OpId op_id) { scope.cache_clear(op_id); }, py::arg("op_id"));

  py::class_<Switch>(m, "Switch", "A switch of this thread; see amanda.disabled() and the others.")
      .def(py::init([](const std::string& which, bool on) {
             return Switch(which == "cache" ? Switch::Which::kCache : Switch::Which::kInstrumentation, on);
           }),
           py::arg("which"), py::arg("on"))
      .def("put_back", &Switch::put_back);
  m.def("is_enabled", &is_enabled, "Is instrumentation on for this thread?");
  m.def("is_cache_enabled", &is_cache_enabled, "Is the action cache on for this thread?");
}

}  // namespace amanda::python
