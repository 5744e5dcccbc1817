#include "kernels.h"

#include <fmt/format.h>

#include <numeric>
#include <stdexcept>

namespace amanda::reference {

void check_same_shape(const Array& a, const Array& b) {
  if (a.shape() == b.shape()) return;
  throw std::invalid_argument(
      fmt::format("[reference] shapes {} and {} differ", to_string(a.shape()), to_string(b.shape())));
}

Array matmul(const Array& a, const Array& b) {
  if (a.shape().size() != 2 || b.shape().size() != 2 || a.shape()[1] != b.shape()[0]) {
    throw std::invalid_argument(
        fmt::format("[reference] shapes {} and {} do not multiply", to_string(a.shape()), to_string(b.shape())));
  }
  const size_t rows = a.shape()[0], inner = a.shape()[1], columns = b.shape()[1];
  std::vector<double> data(rows * columns, 0.0);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < inner; ++k) {
      for (size_t j = 0; j < columns; ++j) data[i * columns + j] += a.data()[i * inner + k] * b.data()[k * columns + j];
    }
  }
  return Array({rows, columns}, std::move(data));
}

Array transposed(const Array& matrix) {
  const size_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  std::vector<double> data(rows * columns);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) data[j * rows + i] = matrix.data()[i * columns + j];
  }
  return Array({columns, rows}, std::move(data));
}

Array concat(const std::vector<Array>& arrays) {
  std::vector<double> data;
  for (const Array& array : arrays) data.insert(data.end(), array.data().begin(), array.data().end());
  return Array({data.size()}, data);
}

Array sliced(const Array& a, size_t begin, Shape shape) {
  const size_t size = std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
  return Array(std::move(shape), std::vector<double>(a.data().begin() + begin, a.data().begin() + begin + size));
}

double sum(const Array& a) { return std::accumulate(a.data().begin(), a.data().end(), 0.0); }

}  // namespace amanda::reference
