// The number of bytes that an operator has returned, which a framework's module gives to a ProfileRecorder.
#pragma once

#include <cstdint>
#include <optional>

#include "amanda/driver/backend.h"

namespace amanda::tools {

/// Elements times element size of all results that are tensors. Empty if not all of them are known.
using OutputBytes = std::optional<int64_t> (*)(OpCall& call);

/// The name of a capsule that holds an OutputBytes.
inline constexpr const char* kOutputBytesCapsule = "amanda.tools.output_bytes";

}  // namespace amanda::tools
