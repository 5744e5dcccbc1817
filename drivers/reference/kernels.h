// Arithmetic on arrays, for the operators and their gradient rules.
#pragma once

#include <algorithm>

#include "amanda/reference/array.h"

namespace amanda::reference {

template <class Fn>
Array map(const Array& a, Fn fn) {
  std::vector<double> data(a.data());
  std::transform(data.begin(), data.end(), data.begin(), fn);
  return Array(a.shape(), std::move(data));
}

void check_same_shape(const Array& a, const Array& b);

template <class Fn>
Array zip(const Array& a, const Array& b, Fn fn) {
  check_same_shape(a, b);
  std::vector<double> data(a.size());
  std::transform(a.data().begin(), a.data().end(), b.data().begin(), data.begin(), fn);
  return Array(a.shape(), std::move(data));
}

Array matmul(const Array& a, const Array& b);
Array transposed(const Array& matrix);
Array concat(const std::vector<Array>& arrays);
Array sliced(const Array& a, size_t begin, Shape shape);  // consecutive elements
double sum(const Array& a);

}  // namespace amanda::reference
