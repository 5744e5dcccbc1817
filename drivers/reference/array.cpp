#include "amanda/reference/array.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

namespace amanda::reference {

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Array::Array(Shape shape, std::vector<double> data)
    : Array(std::move(shape), std::make_shared<Storage>(Storage{std::move(data)})) {}

Array::Array(Shape shape, std::shared_ptr<Storage> storage)
    : shape_(std::move(shape)), storage_(std::move(storage)), gradient_state_(new_gradient_state()) {
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

Array Array::with_gradient_of(const Array& other) const { return with_gradient(other.gradient_state_); }

Array Array::with_gradient(std::shared_ptr<GradientState> state) const {
  Array array = *this;
  array.gradient_state_ = std::move(state);
  return array;
}

std::optional<Array> Array::Weak::lock() const {
  auto storage = storage_.lock();
  auto state = gradient_state_.lock();
  if (!storage || !state) return std::nullopt;
  return Array(shape_, std::move(storage)).with_gradient(std::move(state));
}

}  // namespace amanda::reference
