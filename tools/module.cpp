// amanda._tools: the C++ tools in Python. Each is created as a capsule for amanda.tool.NativeTool.
#include "bindings.h"

PYBIND11_MODULE(_tools, m) {
  using namespace amanda::python;
  m.doc() = "The tools that are written in C++. Use them through `amanda.tools`.";
  bind_flops(m);
  bind_counting(m);
}
