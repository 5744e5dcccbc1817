#include <pybind11/stl.h>

#include <memory>
#include <tuple>

#include "amanda/routine_capsule.h"
#include "bindings.h"
#include "profile/recorder.h"

namespace amanda::python {

namespace py = pybind11;
using tools::ProfileRecorder;

void bind_profile(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<ProfileRecorder, std::shared_ptr<ProfileRecorder>>(m, "ProfileRecorder", "What a Profile has measured.")
      .def(py::init<int64_t, int64_t>(), py::arg("max_events"), py::arg("skip"))
      .def_static(
          "start", [] { return capsule_of(&ProfileRecorder::start); },
          "A routine for `_core.NativeRoutine`, before an operator.")
      .def(
          "start_nested",
          [](const std::shared_ptr<ProfileRecorder>& recorder) {
            return capsule_of([recorder](Values& values) { recorder->start_nested(values); });
          },
          "The same where measured operators run inside others: rows then exclude the inner ones.")
      .def(
          "stop",
          [](const std::shared_ptr<ProfileRecorder>& recorder, size_t place, const py::capsule& output_bytes) {
            void* held = PyCapsule_GetPointer(output_bytes.ptr(), tools::kOutputBytesCapsule);
            if (!held) throw py::error_already_set();
            const auto bytes = *static_cast<const tools::OutputBytes*>(held);
            return capsule_of(
                [recorder, place, bytes](Values& values) { return recorder->stop(values, place, bytes); });
          },
          py::arg("place"), py::arg("output_bytes"),
          "The routine after it. Where it declines, `add` what it has `measured`.")
      .def_static("measured", &ProfileRecorder::measured,
                  "Start, duration and `finished_before`, of the calling thread's last run.")
      .def_readonly_static("ALONE", &ProfileRecorder::kAlone, "`finished_before_ns` of a run that holds no other.")
      .def("knows_thread", &ProfileRecorder::knows_thread, Unlocked())
      .def("name_thread", &ProfileRecorder::name_thread, py::arg("number"), py::arg("name"), Unlocked(),
           "Of the calling thread.")
      .def(
          "add",
          [](ProfileRecorder& recorder, size_t place, int64_t start_ns, int64_t duration_ns, int64_t finished_before_ns,
             int64_t output_bytes) {
            recorder.add({place, start_ns, duration_ns, output_bytes, finished_before_ns});
          },
          py::arg("place"), py::arg("start_ns"), py::arg("duration_ns"), py::arg("finished_before_ns"),
          py::arg("output_bytes"), Unlocked(), "Counts a run, on a thread that is known.")
      .def(
          "rows",
          [](const ProfileRecorder& recorder) {
            using Row = std::tuple<size_t, int64_t, int64_t, std::vector<tools::Durations::Bucket>, int64_t>;
            std::vector<Row> rows;
            for (const auto& [place, durations, bytes] : recorder.rows()) {
              rows.emplace_back(place, durations.count(), durations.total_ns(), durations.buckets(), bytes);
            }
            return rows;
          },
          Unlocked(), "Place, count, total, histogram and output bytes, in the order of the first runs.")
      .def(
          "trace",
          [](const ProfileRecorder& recorder) {
            auto trace = recorder.trace();
            std::vector<std::tuple<size_t, int64_t, int64_t, int64_t, int64_t>> events;
            for (const auto& [run, thread] : trace.events) {
              events.emplace_back(run.place, thread, run.start_ns, run.duration_ns, run.output_bytes);
            }
            return std::tuple(std::move(events), std::move(trace.threads), trace.dropped);
          },
          Unlocked(),
          "The kept runs (place, thread, start, duration, output bytes), the threads, and how many dropped.")
      .def("dropped", &ProfileRecorder::dropped, Unlocked())
      .def("left_out", &ProfileRecorder::left_out, Unlocked())
      .def("reset", &ProfileRecorder::reset, Unlocked());
}

}  // namespace amanda::python
