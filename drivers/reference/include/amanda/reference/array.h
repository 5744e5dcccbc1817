// The runtime's data: dense arrays of doubles.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace amanda::reference {

/// Sizes of an array's dimensions.
using Shape = std::vector<size_t>;
/// A node of the tape; private to the runtime.
struct GradientState;
/// For the runtime: the state of an array without a gradient.
std::shared_ptr<GradientState> new_gradient_state();

/// A dense array of doubles. A handle: copies share the data, as tensors do. One thread may write, or several read.
class Array {
 public:
  /// No elements.
  Array() : Array(Shape{0}, std::vector<double>()) {}
  /// One dimension with these elements.
  Array(std::initializer_list<double> data) : Array(Shape{data.size()}, std::vector<double>(data)) {}
  /// An array of that shape. Throws `std::invalid_argument` if `data` has another number of elements.
  Array(Shape shape, std::vector<double> data);

  /// The sizes of its dimensions.
  const Shape& shape() const { return shape_; }
  /// The elements in row-major order; valid as long as a handle.
  const std::vector<double>& data() const { return storage_->data; }
  /// The number of elements.
  size_t size() const { return storage_->data.size(); }

  /// Changes the data in place, for all handles and views. Throws `std::invalid_argument` for another number of
  /// elements.
  void assign(std::vector<double> data);
  uint64_t version() const { return storage_->version; }  ///< the number of times that the data was changed in place

  Array copy() const;                 ///< its own data, with a version that continues from this one
  Array reshaped(Shape shape) const;  ///< a view; throws `std::invalid_argument` for another number of elements
  /// This data, with gradients flowing where those of `other` do. None flow back from a copy or a view.
  Array with_gradient_of(const Array& other) const;
  /// For the runtime: this data with another gradient state.
  Array with_gradient(std::shared_ptr<GradientState> state) const;
  /// For the runtime: the gradient state, never null.
  const std::shared_ptr<GradientState>& gradient_state() const { return gradient_state_; }
  /// True if both have the same data.
  bool shares_data(const Array& other) const { return storage_ == other.storage_; }
  /// True if shapes and elements are equal.
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
  std::shared_ptr<GradientState> gradient_state_;  // never null: in-place operators change it for all handles
};

/// A handle that keeps nothing alive.
class Array::Weak {
 public:
  /// Refers to this array.
  explicit Weak(const Array& array)
      : shape_(array.shape_), storage_(array.storage_), gradient_state_(array.gradient_state_) {}
  /// The array, if it is still alive.
  std::optional<Array> lock() const;

 private:
  Shape shape_;
  std::weak_ptr<Storage> storage_;
  std::weak_ptr<GradientState> gradient_state_;
};

std::string to_string(const Shape& shape);  ///< "[2, 3]"

}  // namespace amanda::reference
