// Instrumented graphs, and a graph's cache of them, in Python.
#include <pybind11/stl.h>

#include <algorithm>

#include "amanda/driver/engine.h"
#include "collected.h"
#include "graph_handles.h"
#include "graph_site.h"

namespace amanda::python {
namespace {

/// The Python object that lower() returned; borrowed, null if there is none.
PyObject* lowered_object(const Artifact& artifact) { return static_cast<PyObject*>(artifact.lowered.get()); }

struct ArtifactHandle {
  ArtifactPtr artifact;

  int traverse(visitproc visit, void* arg) const {
    if (artifact.use_count() == 1) Py_VISIT(lowered_object(*artifact));  // otherwise a cache owns it too
    return 0;
  }
  void clear() { artifact = std::make_shared<const Artifact>(); }
};

/// A cache that Python can look into.
class PyArtifactCache {
 public:
  ArtifactHandle get(const ToolsetPtr& toolset, const std::string& signature, GraphSite& graph) {
    ArtifactPtr artifact;
    {
      py::gil_scoped_release unlocked;
      artifact = cache_.get(toolset, signature, graph);
    }
    std::erase_if(given_, [](const auto& known) { return known.expired(); });
    const auto is_known = [&](const auto& known) { return known.lock() == artifact; };
    if (artifact->lowered && std::ranges::none_of(given_, is_known)) given_.push_back(artifact);
    return {std::move(artifact)};
  }
  void clear() { cache_.clear(); }
  ArtifactCache::Info info() const { return cache_.info(); }

  int traverse(visitproc visit, void* arg) const {
    for (const auto& weak : given_) {
      const ArtifactPtr artifact = weak.lock();
      if (artifact && artifact.use_count() == 2) Py_VISIT(lowered_object(*artifact));  // ours and this one
    }
    return 0;
  }

 private:
  ArtifactCache cache_;
  std::vector<std::weak_ptr<const Artifact>> given_;  // read and written with the interpreter lock
};

py::object lowered(const ArtifactHandle& handle) {
  PyObject* object = lowered_object(*handle.artifact);
  return object ? py::reinterpret_borrow<py::object>(object) : py::none();
}

void bind_cache(py::module_& m) {
  py::class_<ArtifactCache::Info>(m, "ArtifactCacheInfo", "Counters of an ArtifactCache.")
      .def_readonly("hits", &ArtifactCache::Info::hits, "Calls of get() that built nothing.")
      .def_readonly("builds", &ArtifactCache::Info::builds, "Artifacts built.")
      .def_readonly("size", &ArtifactCache::Info::size, "Artifacts kept.");
  py::class_<PyArtifactCache>(m, "ArtifactCache", "A graph's artifacts, by toolset and signature.",
                              collected<PyArtifactCache>())
      .def(py::init())
      .def(
          "get",
          [](PyArtifactCache& cache, const ToolsetHandle& h, const std::string& signature, PyGraphBackend& backend,
             const py::object& graph) {
            PyGraphSite site(backend, graph);
            return cache.get(h.toolset, signature, site);
          },
          py::arg("toolset"), py::arg("signature"), py::arg("backend"), py::arg("graph"),
          "The artifact of instrument(), built once for a toolset and a signature. Raises as instrument().")
      .def("clear", &PyArtifactCache::clear, "Forgets all that are built: the graph itself has changed.")
      .def("info", &PyArtifactCache::info, "Counters of this cache.");
}

}  // namespace

void bind_artifact(py::module_& m) {
  py::class_<ArtifactHandle>(m, "Artifact", "What became of a graph under a toolset.", collected<ArtifactHandle>())
      .def_property_readonly("lowered", &lowered, "What lower() returned; None: run the original.")
      .def_property_readonly(
          "failure", [](const ArtifactHandle& h) { return h.artifact->failure; },
          "Why the graph could not be lowered; \"\": it could, or nothing was scheduled.")
      .def_property_readonly(
          "unseen",
          [](const ArtifactHandle& h) {
            std::vector<std::pair<std::string, std::string>> all;
            for (const auto& [what, reason] : h.artifact->unseen) all.emplace_back(what, reason);
            return all;
          },
          "What runs and tools are not shown: (what, reason).");
  bind_cache(m);
  m.def(
      "instrument",
      [](const ToolsetHandle& h, PyGraphBackend& backend, const py::object& graph) {
        PyGraphSite site(backend, graph);
        py::gil_scoped_release unlocked;
        return ArtifactHandle{Engine::instrument(*h.toolset, site)};
      },
      py::arg("toolset"), py::arg("backend"), py::arg("graph"),
      "Runs the tools' analyses of a graph. `graph.each_op(visitor)` shows its operators; `graph.lower(sites)` puts "
      "taps beside "
      "them: it gets (index of the operator, its taps) for each operator that has any, and returns the instrumented "
      "graph. Raises what an analysis raised, and amanda.Error for an action that the driver refuses.");
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      std::rethrow_exception(raised);
    } catch (const PythonInterrupt& interrupt) {
      interrupt.error->restore();
    }
  });
}

}  // namespace amanda::python
