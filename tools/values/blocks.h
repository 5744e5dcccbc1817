// The elements of a strided tensor, block by block, or run by run.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace amanda::tools::pytorch {

/// Stays in the first-level cache, also in float64.
inline constexpr int64_t kBlock = 2048;

/// Calls `fn(const T* elements, int64_t count)` until each element was in one block, in any order.
template <class T, class Fn>
void each_block(const at::Tensor& tensor, const Fn& fn) {
  const int64_t count = tensor.numel();
  if (count == 0) return;
  const T* elements = static_cast<const T*>(tensor.const_data_ptr());
  if (tensor.is_non_overlapping_and_dense()) {
    for (int64_t i = 0; i < count; i += kBlock) fn(elements + i, std::min(kBlock, count - i));
    return;
  }
  const at::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  c10::SmallVector<int64_t, 8> index(sizes.size());
  std::array<T, kBlock> gathered;
  int64_t filled = 0, offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    gathered[filled++] = elements[offset];
    if (filled == kBlock) fn(gathered.data(), std::exchange(filled, 0));
    for (size_t dim = sizes.size(); dim-- > 0;) {
      offset += strides[dim];
      if (++index[dim] < sizes[dim]) break;
      offset -= strides[dim] * sizes[dim];
      index[dim] = 0;
    }
  }
  if (filled > 0) fn(gathered.data(), filled);
}

/// The runs of neighbours that the elements of a strided tensor are in. Those of expanded dimensions are passed once.
class Runs {
 public:
  /// `tensor`: has elements.
  explicit Runs(const at::Tensor& tensor) {
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      if (tensor.size(i) > 1 && tensor.stride(i) != 0) dims_.push_back({tensor.stride(i), tensor.size(i), 0});
    }
    std::sort(dims_.begin(), dims_.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
    for (; inside_ < dims_.size() && dims_[inside_].stride == length_; ++inside_) length_ *= dims_[inside_].size;
  }

  /// Elements of each run.
  int64_t length() const { return length_; }
  /// Where the run begins, from the tensor's first element on.
  int64_t begin() const { return begin_; }
  /// Goes to the next run. Returns false after the last one.
  bool next() {
    for (size_t i = inside_; i < dims_.size(); ++i) {
      begin_ += dims_[i].stride;
      if (++dims_[i].index < dims_[i].size) return true;
      begin_ -= dims_[i].stride * dims_[i].size;
      dims_[i].index = 0;
    }
    return false;
  }

 private:
  struct Dim {
    int64_t stride, size, index;
  };
  c10::SmallVector<Dim, 8> dims_;
  int64_t length_ = 1, begin_ = 0;
  size_t inside_ = 0;  // the dimensions that a run covers: the first ones
};

/// True if `fn(const T* elements, int64_t count)` is true for one of the runs of neighbours that the elements are in.
/// Runs of expanded dimensions are passed once.
template <class T, class Fn>
bool any_run(const at::Tensor& tensor, const Fn& fn) {
  const int64_t count = tensor.numel();
  if (count == 0) return false;
  const T* elements = static_cast<const T*>(tensor.const_data_ptr());
  if (tensor.is_non_overlapping_and_dense()) return fn(elements, count);
  Runs runs(tensor);
  const int64_t run = runs.length();
  std::array<T, kBlock> gathered;
  int64_t filled = 0;
  const bool gathers = run < 16;
  do {
    if (gathers) {
      std::copy_n(elements + runs.begin(), run, gathered.begin() + filled);
      filled += run;
      if (filled + run > kBlock && fn(gathered.data(), std::exchange(filled, 0))) return true;
    } else if (fn(elements + runs.begin(), run)) {
      return true;
    }
  } while (runs.next());
  return filled > 0 && fn(gathered.data(), filled);
}

}  // namespace amanda::tools::pytorch
