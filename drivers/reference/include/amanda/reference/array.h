// The runtime's data: dense arrays of doubles.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace amanda::reference {

using Shape = std::vector<size_t>;
struct GradientState;                                 // on the tape
std::shared_ptr<GradientState> new_gradient_state();  // in tape.cpp

/// A handle: copies share the data, as tensors do.
class Array {
 public:
  Array() : Array(Shape{0}, std::vector<double>()) {}
  Array(std::initializer_list<double> data) : Array(Shape{data.size()}, std::vector<double>(data)) {}
  /// Throws `std::invalid_argument` when the shape does not hold that many elements.
  Array(Shape shape, std::vector<double> data);

  const Shape& shape() const { return shape_; }
  const std::vector<double>& data() const { return storage_->data; }
  size_t size() const { return storage_->data.size(); }

  /// Changes the data in place, for all handles and views.
  void assign(std::vector<double> data);
  uint64_t version() const { return storage_->version; }  // how often the data was changed in place

  Array copy() const;                 // own data, which counts on from this version
  Array reshaped(Shape shape) const;  // a view
  /// This data, with gradients flowing where those of `other` do. (None flow back from a copy or a view.)
  Array with_gradient_of(const Array& other) const;
  Array with_gradient(std::shared_ptr<GradientState> state) const;
  const std::shared_ptr<GradientState>& gradient_state() const { return gradient_state_; }
  bool shares_data(const Array& other) const { return storage_ == other.storage_; }
  bool operator==(const Array& other) const { return shape_ == other.shape_ && data() == other.data(); }

  class Weak;

 private:
  struct Storage {
    std::vector<double> data;
    uint64_t version = 0;
  };
  Array(Shape shape, std::shared_ptr<Storage> storage);

  Shape shape_;
  std::shared_ptr<Storage> storage_;
  std::shared_ptr<GradientState> gradient_state_;  // never null: all handles see what an in-place operator puts there
};

/// Keeps nothing alive.
class Array::Weak {
 public:
  explicit Weak(const Array& array)
      : shape_(array.shape_), storage_(array.storage_), gradient_state_(array.gradient_state_) {}
  std::optional<Array> lock() const;

 private:
  Shape shape_;
  std::weak_ptr<Storage> storage_;
  std::weak_ptr<GradientState> gradient_state_;
};

std::string to_string(const Shape& shape);  // "[2, 3]"

}  // namespace amanda::reference
