// The number of floating point operations of an operator, computed from shapes. A multiply-add counts as two.
//
// The conventions are those of PyTorch's torch/utils/flop_counter.py, so that totals can be compared as integers:
// biases, masks, padding and causality are not taken into account.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>

#include "amanda/value.h"

namespace amanda::tools {

using Sizes = std::span<const int64_t>;

inline int64_t product(Sizes sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

/// Empty if a size is kUnknown.
inline std::optional<int64_t> known_product(Sizes sizes) {
  const bool is_known = std::find(sizes.begin(), sizes.end(), kUnknown) == sizes.end();
  return is_known ? std::optional(product(sizes)) : std::nullopt;
}

/// a: (..., m, k), b: (..., k, n); mkn multiply-adds for each of the batch (Golub & Van Loan, Matrix
/// Computations, 1.1).
inline int64_t matmul_flops(Sizes a, Sizes b) { return 2 * product(a) * b.back(); }

// dA = dC B^T and dB = A^T dC (Giles, Collected matrix derivative results for forward and reverse mode AD, 2.2.2).
inline int64_t matmul_grad_a_flops(Sizes grad_a, Sizes grad_c) { return 2 * product(grad_a) * grad_c.back(); }
inline int64_t matmul_grad_b_flops(Sizes grad_b, Sizes grad_c) {
  return 2 * product(grad_b) * grad_c[grad_c.size() - 2];
}

/// One multiply-add for each element of the filter at each position it is applied to: those of the output, or for a
/// transposed convolution those of the input (Dumoulin & Visin, A guide to convolution arithmetic, 4).
inline int64_t convolution_flops(Sizes input, Sizes weight, Sizes output, bool transposed) {
  return 2 * input[0] * product((transposed ? input : output).subspan(2)) * product(weight);
}

/// The gradient of the input needs as many as the convolution. So does that of the weight, with one group; with
/// several, the convention is to count all pairs of input and output channels.
inline int64_t convolution_backward_flops(int64_t forward, int64_t groups, bool of_input, bool of_weight) {
  return (of_input ? forward : 0) + (of_weight ? forward * groups : 0);
}

/// Q K^T and P V, with query (b, h, s_q, d), value (b, h_kv, s_k, d_v).
inline int64_t attention_flops(Sizes query, Sizes value) {
  return 2 * query[0] * query[1] * query[2] * value[2] * (query[3] + value[3]);
}

/// The scores again, dP = dO V^T, dV = P^T dO, dQ = dS K, dK = dS^T Q (Dao, FlashAttention-2, algorithm 2).
inline int64_t attention_backward_flops(Sizes query, Sizes value) {
  return 2 * query[0] * query[1] * query[2] * value[2] * (3 * query[3] + 2 * value[3]);
}

}  // namespace amanda::tools
