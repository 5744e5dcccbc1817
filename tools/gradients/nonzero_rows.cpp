#include "gradients/nonzero_rows.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "values/tensors.h"
#include "values/wide.h"

namespace amanda::tools::pytorch {
namespace {

// The sign is no part of a zero.
template <class Bits>
[[gnu::always_inline]] inline bool has_bits(const Bits* bits, int64_t count) {
  constexpr Bits kSign = static_cast<Bits>(Bits(1) << (8 * sizeof(Bits) - 1));
  constexpr int64_t kBlock = 64;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    Bits found = 0;
    const int64_t end = std::min(begin + kBlock, count);
    for (int64_t i = begin; i < end; ++i) found = static_cast<Bits>(found | bits[i]);
    if ((found & static_cast<Bits>(~kSign)) != 0) return true;
  }
  return false;
}

/// A matrix in memory.
struct Layout {
  int64_t rows, columns, row_stride, column_stride;
};

template <class Bits>
bool mark(const Bits* bits, const Layout& layout, bool* rows) {
  const auto is_nonzero = [&](int64_t row) {
    const Bits* first = bits + row * layout.row_stride;
    if (layout.column_stride == 1) return wide<has_bits<Bits>>(first, layout.columns);
    for (int64_t i = 0; i < layout.columns; ++i) {
      if (wide<has_bits<Bits>>(first + i * layout.column_stride, int64_t(1))) return true;
    }
    return false;
  };
  bool any = false;
  for (int64_t row = 0; row < layout.rows; ++row) {
    if (!rows[row]) any |= rows[row] = is_nonzero(row);
  }
  for (int64_t row = 0; !any && row < layout.rows; ++row) any = rows[row] && is_nonzero(row);
  return any;
}

std::optional<Layout> layout_of(const at::Tensor& gradient, int64_t rows) {
  if (gradient.is_contiguous() && gradient.numel() % rows == 0) {
    return Layout{rows, gradient.numel() / rows, gradient.numel() / rows, 1};
  }
  if (gradient.dim() != 2 || gradient.size(0) != rows) return std::nullopt;
  return Layout{rows, gradient.size(1), gradient.stride(0), gradient.stride(1)};
}

/// Whether an element is not zero, or NaN; marks the rows that have one. Empty if the gradient can't be read here.
std::optional<bool> mark_nonzero(const at::Tensor& gradient, const at::Tensor& rows) {
  const int64_t count = rows.numel();
  if (!is_readable(gradient) || !at::isFloatingType(gradient.scalar_type()) || gradient.numel() == 0 ||
      (count > 1 && (gradient.dim() == 0 || gradient.size(0) != count))) {
    return std::nullopt;
  }
  const std::optional<Layout> layout = layout_of(gradient, count);
  if (!layout) return std::nullopt;
  const void* elements = gradient.const_data_ptr();
  bool* marks = rows.mutable_data_ptr<bool>();
  switch (gradient.element_size()) {
    case 2: return mark(static_cast<const uint16_t*>(elements), *layout, marks);
    case 4: return mark(static_cast<const uint32_t*>(elements), *layout, marks);
    case 8: return mark(static_cast<const uint64_t*>(elements), *layout, marks);
    default: return std::nullopt;
  }
}

}  // namespace

void NonzeroRows::add(int64_t number, const at::Tensor& leaf, at::Tensor rows) {
  TORCH_CHECK_TYPE(
      rows.scalar_type() == at::kBool && rows.is_contiguous() && rows.device().is_cpu() && rows.numel() > 0,
      "[NonzeroRows.add] `rows` is not a contiguous tensor of bool on the host");
  const std::lock_guard lock(mutex_);
  Leaf added{number, c10::weak_intrusive_ptr<c10::TensorImpl>(leaf.getIntrusivePtr()), std::move(rows)};
  leaves_.insert_or_assign(leaf.unsafeGetTensorImpl(), std::move(added));
}

void NonzeroRows::clear() {
  const std::lock_guard lock(mutex_);
  leaves_.clear();
  arrived_.clear();
}

bool NonzeroRows::read(Values& values, Leaves& known) {
  const auto node = torch::autograd::get_current_node();
  const auto* accumulates = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get());
  if (!accumulates) return false;
  const c10::IValue& gradient = operand(values.call(), Side::kInputs, 0);
  if (!gradient.isTensor() || !gradient.toTensor().defined()) return false;
  const void* leaf = accumulates->variable.unsafeGetTensorImpl();
  const std::lock_guard lock(mutex_);
  if (known.insert(leaf).second) return false;
  const auto found = leaves_.find(leaf);
  if (found == leaves_.end() || found->second.tensor.expired()) return false;
  const std::optional<bool> is_nonzero = mark_nonzero(gradient.toTensor(), found->second.rows);
  if (is_nonzero) arrived_.emplace_back(found->second.number, *is_nonzero);
  return is_nonzero.has_value();
}

std::vector<std::pair<int64_t, bool>> NonzeroRows::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(arrived_, {});
}

}  // namespace amanda::tools::pytorch
