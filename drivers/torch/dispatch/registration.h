// Registers our kernels with PyTorch's dispatcher.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace amanda::pytorch {

/// Chooses the two keys and registers the kernels on them permanently; then tracks operators as they are registered and
/// deregistered. Call it once. Throws `Error` if no two keys are free.
void register_kernels();
/// Also catches all operators that match these patterns on the filter key.
void promote_wanted(std::vector<std::string> patterns);
/// The number of operators that are caught on the filter key so far.
size_t count_promoted();

}  // namespace amanda::pytorch
