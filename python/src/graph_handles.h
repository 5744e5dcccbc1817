// What Python holds of a tap and of a toolset: pybind11 has no holder for a pointer to const.
#pragma once

#include "amanda/graph.h"

namespace amanda::python {

struct TapHandle {
  TapPtr tap;
};
struct ToolsetHandle {
  ToolsetPtr toolset;
};

}  // namespace amanda::python
