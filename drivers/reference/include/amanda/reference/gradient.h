// Reverse mode, as a program uses it.
#pragma once

#include <cstdint>
#include <optional>

#include "amanda/reference/array.h"

namespace amanda::reference {

/// A leaf: gradients will flow to this array, which no operator made. All its handles are one leaf.
Array leaf(Array array);
/// Does a gradient flow to this array?
bool requires_gradient(const Array& array);

/// What the backward passes so far added up in a leaf; empty if none reached it.
std::optional<Array> gradient(const Array& leaf);
/// Resets a leaf's gradient.
void clear_gradient(const Array& leaf);

/// How a node that belongs to an observed operator runs: called by the core, if a framework allows that; or by the
/// framework, with hooks before and after it.
enum class NodesRun : uint8_t { kInCore, kBetweenHooks };

/// Runs the tape backwards from `result`, whose gradient is given; it may be run again. Observed by the scopes that are
/// open on this thread. A tape and its leaves may be used by one thread at a time.
///
/// Throws `std::invalid_argument` if `result` requires no gradient or has another shape, and what a tool throws.
void backward(const Array& result, const Array& gradient, NodesRun how = NodesRun::kInCore);

}  // namespace amanda::reference
