// Reverse mode, as a program uses it.
#pragma once

#include <cstdint>
#include <optional>

#include "amanda/reference/array.h"

namespace amanda::reference {

/// Gradients will flow to this array, which no operator made; all its handles stand for one leaf.
Array leaf(Array array);
bool requires_gradient(const Array& array);

/// What the backward passes so far added up in a leaf.
std::optional<Array> gradient(const Array& leaf);
void clear_gradient(const Array& leaf);

/// How a node that belongs to an observed operator runs: from within the core, which a framework may allow; or by
/// itself, with hooks before and after it.
enum class NodesRun : uint8_t { kInCore, kBetweenHooks };

/// Runs the tape backwards from `result`, whose gradient is given; again, if one likes. Observed by the scopes open on
/// this thread. Two threads may not be on one tape at once, nor a thread on a tape and another at work with its leaves.
/// Throws `std::invalid_argument` when `result` requires no gradient, or has another shape.
void backward(const Array& result, const Array& gradient, NodesRun how = NodesRun::kInCore);

}  // namespace amanda::reference
