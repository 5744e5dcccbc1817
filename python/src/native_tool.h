// Capsules that pass C++ tools to Python: extension modules built with different pybind11 versions share only these.
#pragma once

namespace amanda::python {

/// The name of a capsule that holds an `amanda::Tool*`, and owns it until `_core.adopt_tool` takes ownership.
inline constexpr const char* kToolCapsule = "amanda.tool";
inline constexpr const char* kAdoptedToolCapsule = "amanda.tool (adopted)";

}  // namespace amanda::python
