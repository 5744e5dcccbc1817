// amanda._tools: the C++ tools in Python. Each is made as a capsule for amanda.tool.NativeTool.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "flops/flops.h"
#include "tool_capsule.h"

namespace py = pybind11;

namespace amanda::python {
namespace {

/// For benchmarks: what the least C++ routine costs.
class CountingTool final : public Tool {
 public:
  explicit CountingTool(bool backward) : Tool("counting") {
    add_inst_for_op([](OpContext& context) { context.insert_before_op([](Values&) {}); });
    if (!backward) return;
    add_inst_for_op([](OpContext& context) { context.insert_before_backward_op([](Values&) {}); }, {.backward = true});
  }
};

}  // namespace
}  // namespace amanda::python

PYBIND11_MODULE(_tools, m) {
  using amanda::python::capsule_of;
  using amanda::tools::FlopCounts;
  using amanda::tools::Flops;
  m.doc() = "The tools that are written in C++. Use them through `amanda.tools`.";

  py::class_<FlopCounts::Row>(m, "FlopRow", "All runs of one operator type in one module.")
      .def_readonly("op", &FlopCounts::Row::op)
      .def_readonly("module_path", &FlopCounts::Row::module_path)
      .def_readonly("backward", &FlopCounts::Row::backward)
      .def_readonly("runs", &FlopCounts::Row::runs)
      .def_readonly("flops", &FlopCounts::Row::flops);
  py::class_<FlopCounts, std::shared_ptr<FlopCounts>>(m, "FlopCounts", "What a Flops tool has counted so far.")
      .def("rows", &FlopCounts::rows)
      .def("total", &FlopCounts::total)
      .def("by_operator", &FlopCounts::by_operator)
      .def("by_module", &FlopCounts::by_module)
      .def("uncounted", &FlopCounts::uncounted)
      .def("reset", &FlopCounts::reset);
  m.def(
      "make_flops",
      [](bool uncounted, bool cpu_attention) {
        auto tool = std::make_unique<Flops>(amanda::tools::FlopsOptions{uncounted, cpu_attention});
        auto counts = tool->counts();
        return std::pair(capsule_of(std::move(tool)), std::move(counts));
      },
      py::arg("uncounted"), py::arg("cpu_attention"), "The tool, and what it counts.");
  m.def(
      "counting_tool",
      [](bool backward) { return capsule_of(std::make_unique<amanda::python::CountingTool>(backward)); },
      py::arg("backward") = false,
      "For benchmarks: a tool with an empty routine before every forward operator, or backward operators as well.");
}
