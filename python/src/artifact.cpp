// Instrumented graphs, and a graph's cache of them, in Python.
#include <pybind11/stl.h>

#include "amanda/engine.h"
#include "graph_handles.h"
#include "graph_site.h"

namespace amanda::python {
namespace {

struct ArtifactHandle {
  ArtifactPtr artifact;
};

py::object lowered(const ArtifactHandle& handle) {
  if (!handle.artifact->lowered) return py::none();
  return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(handle.artifact->lowered.get()));
}

void bind_cache(py::module_& m) {
  py::class_<ArtifactCache::Info>(m, "ArtifactCacheInfo", "What a graph's cache did so far.")
      .def_readonly("hits", &ArtifactCache::Info::hits)
      .def_readonly("builds", &ArtifactCache::Info::builds)
      .def_readonly("size", &ArtifactCache::Info::size);
  py::class_<ArtifactCache>(m, "ArtifactCache", "A graph's artifacts, by toolset and signature.")
      .def(py::init())
      .def(
          "get",
          [](ArtifactCache& cache, const ToolsetHandle& h, const std::string& signature, PyGraphBackend& backend,
             const py::object& graph) {
            PyGraphSite site(backend, graph);
            py::gil_scoped_release unlocked;
            return ArtifactHandle{cache.get(h.toolset, signature, site)};
          },
          py::arg("toolset"), py::arg("signature"), py::arg("backend"), py::arg("graph"),
          "As instrument(), built once for a toolset and a signature.")
      .def("clear",
           [](ArtifactCache& cache) {
             py::gil_scoped_release unlocked;
             cache.clear();
           })
      .def("info", &ArtifactCache::info);
}

}  // namespace

void bind_artifact(py::module_& m) {
  py::class_<ArtifactHandle>(m, "Artifact", "What became of a graph under a toolset.")
      .def_property_readonly("lowered", &lowered, "What lower() returned; None: run the original.")
      .def_property_readonly("failure", [](const ArtifactHandle& h) { return h.artifact->failure; })
      .def_property_readonly("unseen", [](const ArtifactHandle& h) {
        std::vector<std::pair<std::string, std::string>> all;
        for (const auto& [what, reason] : h.artifact->unseen) all.emplace_back(what, reason);
        return all;
      });
  bind_cache(m);
  m.def(
      "instrument",
      [](const ToolsetHandle& h, PyGraphBackend& backend, const py::object& graph) {
        PyGraphSite site(backend, graph);
        py::gil_scoped_release unlocked;
        return ArtifactHandle{Engine::instrument(*h.toolset, site)};
      },
      py::arg("toolset"), py::arg("backend"), py::arg("graph"),
      "Has tools analyse a graph. `graph.each_op(visitor)` shows its operators; `graph.lower(sites)` puts taps beside "
      "them, given (index of the operator, its taps) for each operator that has any, and returns the instrumented "
      "graph.");
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      std::rethrow_exception(raised);
    } catch (const PythonInterrupt& interrupt) {
      interrupt.error->restore();
    }
  });
}

}  // namespace amanda::python
