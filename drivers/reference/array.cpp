#include "amanda/reference/array.h"

#include <fmt/format.h>

#include <stdexcept>

namespace amanda::reference {

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Array::Array(Shape shape, std::vector<double> data)
    : Array(std::move(shape), std::make_shared<Storage>(Storage{std::move(data)})) {}

Array::Array(Shape shape, std::shared_ptr<Storage> storage) : shape_(std::move(shape)), storage_(std::move(storage)) {
  size_t needed = 1;
  for (size_t extent : shape_) needed *= extent;
  if (needed != size()) {
    throw std::invalid_argument(fmt::format("[array] {} elements do not fill the shape {}", size(), to_string(shape_)));
  }
}

void Array::assign(std::vector<double> data) {
  if (data.size() != size()) {
    throw std::invalid_argument(fmt::format("[array] {} elements assigned to {}", data.size(), to_string(shape_)));
  }
  storage_->data = std::move(data);
  ++storage_->version;
}

Array Array::copy() const { return Array(shape_, std::make_shared<Storage>(*storage_)); }

Array Array::reshaped(Shape shape) const { return Array(std::move(shape), storage_); }

}  // namespace amanda::reference
