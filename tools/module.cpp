// amanda._tools: the C++ tools in Python. A tool is a capsule for amanda.tool.NativeTool, or routines for a tool in
// Python.
#include "bindings.h"

PYBIND11_MODULE(_tools, m) {
  using namespace amanda::python;
  m.doc() = "The tools that are written in C++. Use them through `amanda.tools`.";
  bind_flops(m);
  bind_counting(m);
  bind_profile(m);
}
