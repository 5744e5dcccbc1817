// Python's handles on objects of the core.
#pragma once

#include "amanda/driver/graph.h"

namespace amanda::python {

// pybind11 has no holder for a pointer to const.
struct TapHandle {
  TapPtr tap;
};
struct ToolsetHandle {
  ToolsetPtr toolset;
};

/// Python may keep the object longer than each_op() runs.
struct VisitorHandle {
  GraphVisitor* visitor;  // null once each_op() has returned
};

}  // namespace amanda::python
