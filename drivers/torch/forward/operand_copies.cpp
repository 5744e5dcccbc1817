#include "forward/operand_copies.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/isclose.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <unordered_map>

#include "amanda/error.h"
#include "backward/gradient_edge.h"
#include "base/stack_value.h"
#include "base/tensor_handle.h"
#include "coverage/coverage_counter.h"
#include "thread/keys.h"

namespace amanda::pytorch {
namespace {

// The number of elements of its storage that a strided tensor covers, starting at its first element, gaps included.
int64_t extent_of(const at::Tensor& tensor) {
  int64_t extent = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) extent += (tensor.size(i) - 1) * tensor.stride(i);
  return extent;
}

// clone() makes tensors with gaps, or whose elements share memory, contiguous.
bool clone_changes_strides(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kWrappers(
      {c10::DispatchKey::Python, c10::DispatchKey::Batched, c10::DispatchKey::BatchedNestedTensor});
  constexpr int64_t kMostGaps = 16;  // a column of a large matrix: the gaps would be most of the copy
  return tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_quantized() && tensor.has_storage() &&
         !tensor.key_set().has_any(kFunctorchWrappers | kWrappers) &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && !tensor.is_non_overlapping_and_dense() &&
         tensor.numel() > 0 && !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor() &&
         extent_of(tensor) <= kMostGaps * tensor.numel();
}

at::Tensor copy_with_strides(const at::Tensor& tensor) {
  const at::Tensor detached = tensor.detach();
  if (!clone_changes_strides(tensor)) return detached.clone();
  const at::Tensor copy = detached.as_strided({extent_of(tensor)}, {1}).clone();
  // No view: autograd refuses in-place operators on views that were made without gradient recording.
  return copy.as_strided(tensor.sizes(), tensor.strides(), 0).variable_data();
}

// The index of the first member of the list that is the same tensor.
size_t first_of(const std::vector<at::Tensor>& members, size_t i) {
  for (size_t j = 0; j < i; ++j) {
    if (members[j].is_same(members[i])) return j;
  }
  return i;
}

void assign(const at::Tensor& target, const at::Tensor& value) {
  if (!target.defined() || !value.defined() || target.is_same(value)) return;
  if (!same_shape(target, value)) {  // only out= may change its shape
    c10::AutoGradMode no_grad(false);
    target.resize_(value.sizes());
  }
  target.copy_(value);  // recorded, if the program records
}

}  // namespace

at::Tensor private_copy(const at::Tensor& tensor) {
  const OwnWork uncounted;
  c10::impl::ExcludeDispatchKeyGuard unobserved(keys().both);
  at::Tensor copy;
  {
    c10::AutoGradMode no_grad(false);
    copy = copy_with_strides(tensor);
  }
  return stand_in_for(tensor, copy);
}

c10::IValue private_copy(const c10::IValue& operand) {
  if (operand.isTensor()) return operand.toTensor().defined() ? private_copy(operand.toTensor()) : operand;
  if (!operand.isTensorList()) return operand;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : operand.toTensorVector()) list.push_back(private_copy(tensor));
  return list;
}

c10::IValue with_same_members(const c10::IValue& old, const c10::IValue& list) {
  if (!old.isTensorList() || !list.isTensorList()) return list;
  const auto olds = old.toTensorVector();
  auto members = list.toTensorVector();
  for (size_t i = 0; i < std::min(olds.size(), members.size()); ++i) members[i] = members[first_of(olds, i)];
  return c10::List<at::Tensor>(members);
}

void assign(const c10::IValue& target, const c10::IValue& value) {
  if (target.isTensor() && value.isTensor()) return assign(target.toTensor(), value.toTensor());
  if (!target.isTensorList() || !value.isTensorList()) return;
  const auto targets = target.toTensorVector(), values = value.toTensorVector();
  for (size_t i = 0; i < std::min(targets.size(), values.size()); ++i) {
    if (first_of(targets, i) == i) assign(targets[i], values[i]);
  }
}

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  if (!a.defined() || !b.defined() || !same_shape(a, b)) return false;
  const OwnWork uncounted;
  c10::impl::ExcludeDispatchKeyGuard unobserved(keys().both);
  c10::AutoGradMode no_grad(false);
  const bool has_nan = a.is_floating_point() || a.is_complex();
  return at::isclose(a.detach(), b.detach(), 0.0, 0.0, has_nan).all().item<bool>();
}

void check_members(const c10::IValue& old, const c10::IValue& given) {
  if (!old.isTensorList() || !given.isTensorList()) return;
  const auto olds = old.toTensorVector(), values = given.toTensorVector();
  if (olds.size() != values.size())
    throw Error(c10::str("the operator writes to a list of ", olds.size(), " tensors, got ", values.size()));
  std::unordered_map<const c10::StorageImpl*, std::vector<size_t>> by_storage;
  for (size_t i = 0; i < olds.size(); ++i) {
    if (!olds[i].defined() || !olds[i].has_storage()) continue;
    std::vector<size_t>& others = by_storage[storage_of(olds[i])];
    for (size_t j : others) {
      if (olds[i].is_same(olds[j])) {
        if (same_values(values[i], values[j])) break;
        throw Error(c10::str("its members ", j, " and ", i,
                             " are one tensor, which the operator writes to; the values for them differ"));
      }
      const auto overlap = at::get_overlap_status(olds[i], olds[j]);
      if (overlap == at::MemOverlapStatus::Full || overlap == at::MemOverlapStatus::Partial) {
        throw Error(c10::str("its members ", j, " and ", i,
                             " share memory that the operator writes to; other values cannot replace them"));
      }
    }
    others.push_back(i);
  }
}

}  // namespace amanda::pytorch
