// Registers our kernels with PyTorch's dispatcher, so that calls come in.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace amanda::pytorch {

/// Chooses the two keys and registers the kernels on them, for good; from then on follows operators that come and go.
/// To be called once. Throws `Error` when no two keys are free.
void register_kernels();
/// Has all operators that these patterns ask for caught on the filter key, too.
void promote_wanted(std::vector<std::string> patterns);
/// How many operators are, so far.
size_t count_promoted();

}  // namespace amanda::pytorch
