// How many operations one forward run takes, from what it is given.
//
// Nothing: the operands are of a kind that the formula is not for. Formulas run before the operator has checked
// anything: what it is going to refuse must do no harm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "amanda/action.h"
#include "flops/forward_runs.h"

namespace amanda::tools {

/// Nothing: it is no tensor, or some size is not known.
std::optional<IntVector> sizes_of(const Values& values, size_t i);

std::optional<int64_t> flops_of_matmul(const Values& values);  // a, b
/// input, weight, stride, padding, dilation, transposed, output_padding, groups. Notes the run.
std::optional<int64_t> flops_of_convolution(const Values& values, ForwardRuns& runs);
/// grad_output, input, weight, transposed, groups, output_mask.
std::optional<int64_t> flops_of_convolution_backward(const Values& values);
/// query, key, value. Notes the run.
std::optional<int64_t> flops_of_attention(const Values& values, ForwardRuns& runs);

}  // namespace amanda::tools
