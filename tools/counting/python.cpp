// For benchmarks: the cost of a minimal C++ routine.
#include "amanda/amanda.h"
#include "bindings.h"
#include "tool_capsule.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

class CountingTool final : public Tool {
 public:
  explicit CountingTool(bool backward) : Tool("counting") {
    add_inst_for_op([](OpContext& context) { context.insert_before_op([](Values&) {}); });
    if (!backward) return;
    add_inst_for_op([](OpContext& context) { context.insert_before_backward_op([](Values&) {}); }, {.backward = true});
  }
};

}  // namespace

void bind_counting(py::module_& m) {
  m.def(
      "counting_tool", [](bool backward) { return capsule_of(std::make_unique<CountingTool>(backward)); },
      py::arg("backward") = false,
      "For benchmarks: a tool with an empty routine before every forward operator, or backward operators as well.");
}

}  // namespace amanda::python
