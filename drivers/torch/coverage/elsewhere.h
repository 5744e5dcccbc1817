// Notes whether the first operator that the program calls is called by a thread that is in no scope.
#pragma once

#include <cstdint>
#include <string>

namespace amanda::pytorch {

/// Begins to wait for the first operator on any thread, which costs about a microsecond more. `entry` is of this
/// thread.
void await_elsewhere(uint64_t entry);
/// Ends the wait. Returns the operator that another thread called first, "aten::conv2d"; or an empty string.
std::string end_await_elsewhere(uint64_t entry);

}  // namespace amanda::pytorch
