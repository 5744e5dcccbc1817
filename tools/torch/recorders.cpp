// The recorders in Python.
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "amanda/routine_capsule.h"
#include "torch/bindings.h"
#include "torch/gradients.h"
#include "torch/statistics.h"

namespace amanda::tools::pytorch {
namespace {

namespace py = pybind11;
using Unlocked = py::call_guard<py::gil_scoped_release>;

/// The binding that recorders have in common.
template <class Recorder>
py::class_<Recorder, std::shared_ptr<Recorder>> bind(py::module_& m, const char* name, const char* doc) {
  py::class_<Recorder, std::shared_ptr<Recorder>> bound(m, name, doc);
  bound.def(py::init<>())
      .def(
          "routine",
          [](const std::shared_ptr<Recorder>& recorder, OpId id) {
            return python::capsule_of([recorder, id](Values& values) { return recorder->record(values, id); });
          },
          py::arg("op_id"), "A routine for `_core.NativeRoutine`. It declines where something must be read in Python.")
      .def("reset", &Recorder::reset, Unlocked());
  return bound;
}

}  // namespace

void bind_statistics(py::module_& m) {
  // In the order of the fields of `_Summary` in amanda/tools/statistics.py.
  using Fields = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, double, double, double, double>;
  bind<StatisticsRecorder>(m, "StatisticsRecorder", "What OpStatistics has found of eager operators.")
      .def(
          "rows",
          [](const StatisticsRecorder& recorder) {
            std::vector<std::tuple<OpId, int64_t, int64_t, std::vector<Fields>>> rows;
            for (const auto& [id, first_ns, found] : recorder.rows()) {
              std::vector<Fields> fields;
              for (const Summary& o : found.outputs) {
                fields.emplace_back(o.elements, o.zeros, o.nans, o.infs, 0, o.finite, o.min, o.max, o.mean, o.squares);
              }
              rows.emplace_back(id, first_ns, found.calls, std::move(fields));
            }
            return rows;
          },
          Unlocked(), "Id, time of the first run, calls, and the fields of each output's summary.")
      .def(
          "routine_where_unwritten",
          [](const std::shared_ptr<StatisticsRecorder>& recorder, OpId id,
             const std::shared_ptr<UnwrittenMemory>& memory) {
            return python::capsule_of([=](Values& values) { return recorder->record(values, id, memory.get()); });
          },
          py::arg("op_id"), py::arg("memory"), "The same, where a result may be in memory that has no values yet.")
      .def(
          "routine_of_runs",
          [](const std::shared_ptr<StatisticsRecorder>& recorder, OpId id) {
            return python::capsule_of([=](Values& values) { return recorder->record_run(values, id); });
          },
          py::arg("op_id"), "The same, of an operator whose results have no values.");
}

void bind_gradients(py::module_& m) {
  // In the order of the fields of `_Norms` in amanda/tools/gradients.py.
  using Fields = std::tuple<int64_t, int64_t, int64_t, int64_t, std::optional<double>, int64_t, double, double, double>;
  using Side = std::pair<int64_t, std::vector<Fields>>;
  bind<GradientRecorder>(m, "GradientRecorder", "What GradientStatistics has found of eager backward operators.")
      .def(
          "rows",
          [](const GradientRecorder& recorder) {
            std::vector<std::tuple<OpId, int64_t, std::array<Side, 2>>> rows;
            for (const auto& [id, first_ns, sides] : recorder.rows()) {
              std::array<Side, 2> found;
              for (size_t i = 0; i < found.size(); ++i) {
                found[i].first = sides[i].calls;
                for (const Norms& n : sides[i].norms) {
                  found[i].second.emplace_back(n.undefined, 0, n.nonfinite, n.finite, n.last, n.last_ns, n.min, n.max,
                                               n.sum);
                }
              }
              rows.emplace_back(id, first_ns, std::move(found));
            }
            return rows;
          },
          Unlocked(), "Id, time of the first run, and for both sides calls and the fields of each gradient's norms.");
}

}  // namespace amanda::tools::pytorch
