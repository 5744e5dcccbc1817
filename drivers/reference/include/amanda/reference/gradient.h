// Reverse mode, as a program uses it.
#pragma once

#include <cstdint>
#include <optional>

#include "amanda/reference/array.h"

namespace amanda::reference {

/// A leaf: gradients will flow to this array, which no operator made. All its handles are one leaf.
Array leaf(Array array);
/// True if a gradient flows to this array.
bool requires_gradient(const Array& array);

/// The sum of the gradients of the backward passes so far in a leaf; empty if none reached it.
std::optional<Array> gradient(const Array& leaf);
/// Resets a leaf's gradient.
void clear_gradient(const Array& leaf);

/// The caller of a node that belongs to an observed operator: the core, if a framework allows that; or the framework,
/// with hooks before and after the node.
enum class NodesRun : uint8_t { kInCore, kBetweenHooks };

/// Runs the tape backwards from `result`, whose gradient is given; it may be run again. Observed by the scopes that are
/// open on this thread. A tape and its leaves may be used by one thread at a time.
///
/// Throws `std::invalid_argument` if `result` requires no gradient or has another shape, and any exception of a tool.
void backward(const Array& result, const Array& gradient, NodesRun how = NodesRun::kInCore);

}  // namespace amanda::reference
