// The number of operations of an operator that a word stands for, computed from shapes. See amanda.tools.mapping.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "amanda/op.h"
#include "flops/bilinear_operator.h"
#include "flops/flops_options.h"

namespace amanda::tools {

/// a: (..., m, k), b: (..., k, n), both perhaps transposed; output: (..., m, n), with broadcast batches.
std::optional<int64_t> matmul_of(const BilinearShapes& shapes);

/// a: the images, b: the filter, with this layout. The layout of the images does not matter. `transposed`: the filter
/// is applied to elements of the input, and its I are their channels. Empty if the filter has another rank.
std::optional<int64_t> convolution_of(const BilinearShapes& shapes, const std::string& layout, bool transposed = false);

/// The operator, by these descriptions, of which there is at least one: one for each rank of a convolution's filter.
/// Empty if it has no such operands.
std::optional<BilinearOperator> find_described(const std::vector<FlopsOperator>& descriptions, const OpInfo& op);

}  // namespace amanda::tools
