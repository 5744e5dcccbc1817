// For benchmarks: the cost of minimal C++ routines.
#include <pybind11/stl.h>

#include "amanda/amanda.h"
#include "amanda/tool_capsule.h"
#include "bindings.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

class CountingTool final : public Tool {
 public:
  CountingTool(bool backward, const OpFilter& ops, bool looks) : Tool("counting") {
    const RoutineKind kind = looks ? RoutineKind::kObserve : RoutineKind::kUnknown;
    add_inst_for_op(
        [=](OpContext& context) { context.insert_before_op([](Values&) {}, {.kind = kind, .with_operators = !looks}); },
        {.ops = ops});
    if (!backward) return;
    add_inst_for_op(
        [=](OpContext& context) {
          context.insert_before_backward_op([](Values&) {},
                                            {.kind = kind, .with_run = false, .with_operators = !looks});
        },
        {.backward = true, .ops = ops});
  }
};

class EditingTool final : public Tool {
 public:
  explicit EditingTool(const OpFilter& ops) : Tool("editing") {
    add_inst_for_op(
        [](OpContext& context) { context.insert_after_op([](Values&) {}, {.kind = RoutineKind::kTransform}); },
        {.ops = ops});
  }
};

OpFilter filter_of(const std::vector<std::string>& ops) { return ops.empty() ? OpFilter() : OpFilter(ops); }

}  // namespace

void bind_counting(py::module_& m) {
  m.def(
      "counting_tool",
      [](bool backward, const std::vector<std::string>& ops, bool looks) {
        return capsule_of(std::make_unique<CountingTool>(backward, filter_of(ops), looks));
      },
      py::arg("backward") = false, py::arg("ops") = std::vector<std::string>(), py::arg("looks") = false,
      "For benchmarks: a tool with an empty routine before every forward operator, or backward operators as well; of "
      "these types, if some are named. With looks=True the routine declares that it edits nothing and calls no "
      "operator.");
  m.def(
      "editing_tool",
      [](const std::vector<std::string>& ops) { return capsule_of(std::make_unique<EditingTool>(filter_of(ops))); },
      py::arg("ops"),
      "For benchmarks: a tool with a routine after each forward operator of these types that gets its results, may "
      "change them, and does not.");
}

}  // namespace amanda::python
