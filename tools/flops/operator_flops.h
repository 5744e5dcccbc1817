// The number of operations of one forward run, computed from its operands.
//
// The number is empty if the formula does not cover this kind of operands. Formulas run before the operator has checked
// its operands, so invalid ones must do no harm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "amanda/action.h"
#include "flops/forward_runs.h"

namespace amanda::tools {

/// The sizes of an operand. Empty if it is not a tensor, or if a size is unknown.
std::optional<IntVector> sizes_of(const Values& values, size_t i);

std::optional<int64_t> flops_of_matmul(const Values& values);  // a, b
/// input, weight, stride, padding, dilation, transposed, output_padding, groups. Notes the run.
std::optional<int64_t> flops_of_convolution(const Values& values, ForwardRuns& runs);
/// grad_output, input, weight, transposed, groups, output_mask.
std::optional<int64_t> flops_of_convolution_backward(const Values& values);
/// query, key, value. Notes the run.
std::optional<int64_t> flops_of_attention(const Values& values, ForwardRuns& runs);

}  // namespace amanda::tools
