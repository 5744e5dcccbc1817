// The recorder of OpStatistics in Python.
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "statistics/statistics.h"
#include "torch_bindings.h"
#include "values/recorder.h"

namespace amanda::tools::pytorch {

namespace py = pybind11;

void bind_statistics(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  // In the order of the fields of `_Summary` in amanda/tools/statistics.py.
  using Fields = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, double, double, double, double>;
  bind_recorder<StatisticsRecorder>(m, "StatisticsRecorder", "What OpStatistics has found of eager operators.")
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

}  // namespace amanda::tools::pytorch
