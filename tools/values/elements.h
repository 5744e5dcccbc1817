// One pass over the elements of a tensor: their counts by kind, and their distribution.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace amanda::tools::pytorch {

/// Statistics of a set of elements; the last four cover the finite floating-point elements.
struct Summary {
  int64_t elements = 0, zeros = 0, nans = 0, infs = 0, finite = 0;
  double min = std::numeric_limits<double>::infinity(), max = -std::numeric_limits<double>::infinity();
  double mean = 0, squares = 0;  // the sum of squared differences from the mean

  /// Adds the elements of `other`.
  ///
  /// The update is that of T. F. Chan, G. H. Golub, R. J. LeVeque: Updating Formulae and a Pairwise Algorithm for
  /// Computing Sample Variances, Stanford STAN-CS-79-773, 1979.
  void merge(const Summary& other);
};

/// The summary of a tensor that is_readable(). Empty if its dtype is not supported here. Integers, bool and complex
/// numbers only have the counts of elements and zeros.
std::optional<Summary> summary_of(const at::Tensor& tensor);

/// The Euclidean norm of a tensor that is_readable(), in float64. Empty if its dtype is not supported here.
std::optional<double> norm_of(const at::Tensor& tensor);

}  // namespace amanda::tools::pytorch
