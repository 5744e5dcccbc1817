// amanda._cupti: the GPU kernel profiler in Python. Independent of torch; needs no CUDA at build or import.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string_view>
#include <unordered_map>

#include "cupti_profiler/cupti_profiler.h"
#include "tool_capsule.h"

namespace py = pybind11;

namespace amanda::python {
namespace {

using tools::Activity;
using tools::Attribution;
using tools::KernelProfile;
using tools::KernelTotals;
using tools::OperatorTree;
using tools::ProfiledOperator;
using tools::RunEvent;
using tools::RunMeasures;

/// One activity of the device, for a trace.
struct ActivityEvent {
  std::string name;
  Attribution known;
};

std::vector<KernelTotals> kernels(KernelProfile& profile) {
  auto totals = profile.kernels().totals();
  for (KernelTotals& kernel : totals) kernel.name = tools::demangled(kernel.name);
  return totals;
}

std::vector<ActivityEvent> activities(KernelProfile& profile) {
  std::unordered_map<std::string_view, std::string> names;
  std::vector<ActivityEvent> events;
  for (const Attribution& known : profile.kernels().events()) {
    std::string& name = names[known.activity.name];
    if (name.empty()) name = tools::demangled(std::string(known.activity.name));
    events.push_back({name, known});
  }
  return events;
}

FrameworkProbe probe_in(const py::object& capsule) {
  if (capsule.is_none()) return {};
  void* probe = PyCapsule_GetPointer(capsule.ptr(), kFrameworkProbeCapsule);
  if (!probe) throw py::error_already_set();
  return *static_cast<const FrameworkProbe*>(probe);
}

std::pair<py::capsule, std::shared_ptr<KernelProfile>> make_profiler(
    bool gpu, bool backward, bool nested, bool operand_bytes, const std::optional<std::vector<std::string>>& ops,
    size_t max_events, std::vector<std::string> candidates, const py::object& probe) {
  auto tool =
      std::make_unique<tools::CuptiProfiler>(tools::CuptiProfilerOptions{.gpu = gpu,
                                                                         .backward = backward,
                                                                         .nested = nested,
                                                                         .operand_bytes = operand_bytes,
                                                                         .ops = ops ? OpFilter(*ops) : OpFilter(),
                                                                         .max_events = max_events,
                                                                         .candidates = std::move(candidates),
                                                                         .probe = probe_in(probe)});
  auto profile = tool->profile();
  return {capsule_of(std::move(tool)), std::move(profile)};
}

const char* phase_name(tools::OperatorPhase phase) {
  constexpr const char* kNames[] = {"forward", "backward", "recompute", "optimizer"};
  return kNames[static_cast<size_t>(phase)];
}

const char* kind_name(Activity::Kind kind) {
  constexpr const char* kNames[] = {"kernel", "memcpy", "memset"};
  return kNames[static_cast<size_t>(kind)];
}

void bind_operators(py::module_& m) {
  py::class_<ProfiledOperator>(m, "ProfiledOperator", "One place in the program, as analysis found it.")
      .def_readonly("name", &ProfiledOperator::name)
      .def_readonly("forward_name", &ProfiledOperator::forward_name)
      .def_readonly("module_path", &ProfiledOperator::module_path)
      .def_readonly("source", &ProfiledOperator::source)
      .def_readonly("op_id", &ProfiledOperator::id)
      .def_readonly("backward_op_id", &ProfiledOperator::backward_id);
  py::class_<RunMeasures>(m, "RunMeasures", "Nanoseconds and bytes on the host, of one run or of many.")
      .def_readonly("inclusive_ns", &RunMeasures::inclusive_ns)
      .def_readonly("exclusive_ns", &RunMeasures::exclusive_ns)
      .def_readonly("allocated_bytes", &RunMeasures::allocated_bytes)
      .def_readonly("freed_bytes", &RunMeasures::freed_bytes)
      .def_readonly("device_allocated_bytes", &RunMeasures::device_allocated_bytes)
      .def_readonly("device_freed_bytes", &RunMeasures::device_freed_bytes)
      .def_readonly("operand_bytes", &RunMeasures::operand_bytes);
  py::class_<OperatorTree::Totals>(m, "Node", "An operator inside the operators above it; node 0 stands for none.")
      .def_readonly("index", &OperatorTree::Totals::node)
      .def_readonly("parent", &OperatorTree::Totals::parent)
      .def_readonly("op", &OperatorTree::Totals::op)
      .def_property_readonly("phase", [](const OperatorTree::Totals& node) { return phase_name(node.phase); })
      .def_readonly("calls", &OperatorTree::Totals::calls)
      .def_readonly("failed", &OperatorTree::Totals::failed)
      .def_readonly("sum", &OperatorTree::Totals::sum);
}

void bind_kernels(py::module_& m) {
  py::class_<KernelTotals>(m, "KernelTotals", "All activities of one name in one node.")
      .def_readonly("node", &KernelTotals::node)
      .def_readonly("name", &KernelTotals::name)
      .def_property_readonly("kind", [](const KernelTotals& kernel) { return kind_name(kernel.kind); })
      .def_readonly("count", &KernelTotals::count)
      .def_readonly("total_ns", &KernelTotals::total_ns)
      .def_readonly("shortest_ns", &KernelTotals::shortest_ns)
      .def_readonly("longest_ns", &KernelTotals::longest_ns)
      .def_readonly("bytes", &KernelTotals::bytes);
}

void bind_events(py::module_& m) {
  py::class_<RunEvent>(m, "RunEvent", "One run of an operator; times are those of time.monotonic_ns.")
      .def_readonly("run", &RunEvent::run)
      .def_readonly("node", &RunEvent::node)
      .def_readonly("thread", &RunEvent::thread)
      .def_readonly("start_ns", &RunEvent::start_ns)
      .def_readonly("end_ns", &RunEvent::end_ns)
      .def_readonly("measures", &RunEvent::measures);
  py::class_<ActivityEvent>(m, "ActivityEvent", "One kernel, copy or memset; times are those of time.monotonic_ns.")
      .def_readonly("name", &ActivityEvent::name)
      .def_property_readonly("kind", [](const ActivityEvent& e) { return kind_name(e.known.activity.kind); })
      .def_property_readonly("device", [](const ActivityEvent& e) { return e.known.activity.device; })
      .def_property_readonly("stream", [](const ActivityEvent& e) { return e.known.activity.stream; })
      .def_property_readonly("start_ns", [](const ActivityEvent& e) { return e.known.activity.start_ns; })
      .def_property_readonly("end_ns", [](const ActivityEvent& e) { return e.known.activity.end_ns; })
      .def_property_readonly("bytes", [](const ActivityEvent& e) { return e.known.activity.bytes; })
      .def_property_readonly("correlation_id", [](const ActivityEvent& e) { return e.known.activity.correlation_id; })
      .def_property_readonly(
          "run", [](const ActivityEvent& e) { return e.known.run; }, "The operator's; None: not known.")
      .def_property_readonly(
          "launch",
          [](const ActivityEvent& e) -> std::optional<std::pair<int64_t, int64_t>> {
            if (!e.known.call) return std::nullopt;
            return std::pair(e.known.call->start_ns, e.known.call->end_ns);
          },
          "Start and end of the call that caused it; None: not known.");
}

}  // namespace
}  // namespace amanda::python

PYBIND11_MODULE(_cupti, m) {
  using namespace amanda::python;
  m.doc() = "GPU kernels, times and bytes per operator. Use it through `amanda.tools.cupti_profiler`.";
  bind_operators(m);
  bind_kernels(m);
  bind_events(m);

  py::class_<KernelProfile, std::shared_ptr<KernelProfile>>(m, "KernelProfile", "What a CuptiProfiler has measured.")
      .def("operators", [](KernelProfile& profile) { return profile.runs()->tree().operators(); })
      .def("nodes", [](KernelProfile& profile) { return profile.runs()->tree().totals(); })
      .def("kernels", &kernels)
      .def("runs", [](KernelProfile& profile) { return profile.runs()->events(); })
      .def("activities", &activities)
      .def_property_readonly("gpu_status", &KernelProfile::gpu_status)
      .def_property_readonly("library", [](KernelProfile& profile) { return profile.kernels().library(); })
      .def("notes", &KernelProfile::notes)
      .def("reset", &KernelProfile::reset);
  m.def("make_profiler", &make_profiler, py::arg("gpu"), py::arg("backward"), py::arg("nested"),
        py::arg("operand_bytes"), py::arg("ops"), py::arg("max_events"), py::arg("candidates"), py::arg("probe"),
        "The tool, and what it measures.");
}
