// How a C++ tool comes to Python: extension modules are built with different versions of pybind11, and share capsules.
#pragma once

namespace amanda::python {

/// The name of a capsule that holds an `amanda::Tool*` and, until `_core.adopt_tool` takes it, owns it.
inline constexpr const char* kToolCapsule = "amanda.tool";
inline constexpr const char* kAdoptedToolCapsule = "amanda.tool (adopted)";

}  // namespace amanda::python
