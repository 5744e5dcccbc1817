// The elements of a strided tensor, block by block.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>

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

}  // namespace amanda::tools::pytorch
