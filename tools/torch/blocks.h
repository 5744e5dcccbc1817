// The elements of a strided tensor, block by block, or run by run.
#pragma once

#include <ATen/core/Tensor.h>

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

/// True if `fn(const T* elements, int64_t count)` is true for one of the runs of neighbours that the elements are in.
/// Runs of expanded dimensions are passed once.
template <class T, class Fn>
bool any_run(const at::Tensor& tensor, const Fn& fn) {
  const int64_t count = tensor.numel();
  if (count == 0) return false;
  const T* elements = static_cast<const T*>(tensor.const_data_ptr());
  if (tensor.is_non_overlapping_and_dense()) return fn(elements, count);
  struct Dim {
    int64_t stride, size, index;
  };
  c10::SmallVector<Dim, 8> dims;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) != 0) dims.push_back({tensor.stride(i), tensor.size(i), 0});
  }
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  int64_t run = 1;  // of neighbours; `first`: the dimensions that it covers
  size_t first = 0;
  for (; first < dims.size() && dims[first].stride == run; ++first) run *= dims[first].size;
  std::array<T, kBlock> gathered;
  int64_t filled = 0;
  const bool gathers = run < 16;
  for (;;) {
    if (gathers) {
      std::copy_n(elements, run, gathered.begin() + filled);
      filled += run;
      if (filled + run > kBlock && fn(gathered.data(), std::exchange(filled, 0))) return true;
    } else if (fn(elements, run)) {
      return true;
    }
    size_t i = first;
    for (; i < dims.size(); ++i) {
      elements += dims[i].stride;
      if (++dims[i].index < dims[i].size) break;
      elements -= dims[i].stride * dims[i].size;
      dims[i].index = 0;
    }
    if (i == dims.size()) return filled > 0 && fn(gathered.data(), filled);
  }
}

}  // namespace amanda::tools::pytorch
