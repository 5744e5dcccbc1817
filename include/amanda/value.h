// Operands: values that the core passes on, and descriptions of them that do not depend on the framework.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace amanda {

/// A borrowed operand. Trivially copyable; the core copies it and never looks in.
struct Value {
  void* ref = nullptr;  ///< the driver's operand; null if it is None or no longer alive
};

/// A few integers, such as the sizes of a tensor. Up to six need no allocation.
class IntVector {
 public:
  /// No integers.
  IntVector() = default;
  /// These integers.
  IntVector(std::initializer_list<int64_t> values) : IntVector(std::span(values.begin(), values.size())) {}
  /// A copy of these integers.
  explicit IntVector(std::span<const int64_t> values) {
    for (int64_t value : values) push_back(value);
  }

  /// Appends an integer.
  void push_back(int64_t value) {
    if (size_ < few_.size()) {
      few_[size_] = value;
    } else {
      if (size_ == few_.size()) many_.assign(few_.begin(), few_.end());
      many_.push_back(value);
    }
    ++size_;
  }

  /// The number of integers.
  size_t size() const { return size_; }
  /// True if there are no integers.
  bool empty() const { return size_ == 0; }
  /// The first one; the others follow it. Valid until the next push_back().
  const int64_t* data() const { return size_ > few_.size() ? many_.data() : few_.data(); }
  /// The first one.
  const int64_t* begin() const { return data(); }
  /// Past the last one.
  const int64_t* end() const { return data() + size_; }
  /// The i-th one; `i` must be below size().
  int64_t operator[](size_t i) const { return data()[i]; }
  /// True if they are the same integers in the same order.
  bool operator==(const IntVector& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

 private:
  size_t size_ = 0;
  std::array<int64_t, 6> few_{};
  std::vector<int64_t> many_;  // all of them, once they are more
};

/// The kind of operand that a Value refers to.
enum class ValueKind : uint8_t {
  kNone,  ///< None, an undefined tensor, or an operand that is no longer alive
  kTensor,
  kTensors,  ///< a list of tensors, some of which may be None
  kNumber,   ///< int, float, complex or bool; a dtype or a layout too, where the framework passes it as an integer
  kNumbers,  ///< a list of numbers
  kOther,    ///< a string, a device, a generator; or any operand that the driver does not describe
};

/// A size that is not known before the program runs, or a number of bytes that depends on one.
inline constexpr int64_t kUnknown = -1;

/// The description of an operand that Backend::describe() returns. A snapshot: it stays valid when the operand is gone.
struct ValueInfo {
  ValueKind kind = ValueKind::kNone;  ///< the kind of operand
  /// The dtype of a tensor or a number, or of all numbers of a list: "float32", "int64", "bool". "" if it is unknown,
  /// or if the numbers differ. Valid as long as the process.
  std::string_view dtype{};
  /// The sizes of a tensor, or of a weight before its library packed it; an element may be kUnknown. Empty if even the
  /// number of dimensions is unknown, as for a nested tensor.
  std::optional<IntVector> sizes{};
  std::string device{};        ///< of a tensor: "cpu", "cuda:0"; "" if it is not known
  int64_t bytes = 0;           ///< elements times element size, of a list all tensors together; or kUnknown
  bool requires_grad = false;  ///< of a list: one of the tensors does
  int tangents = 0;            ///< of a tensor: 1 if forward-mode differentiation gave it a tangent; or kUnknown
  /// The values of an int or a bool, or of a list of them; empty if one is a symbol.
  IntVector integers{};
  std::vector<ValueInfo> elements{};  ///< of a list of tensors
};

}  // namespace amanda
