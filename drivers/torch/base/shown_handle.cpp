#include "base/shown_handle.h"

#include "base/stack_value.h"

namespace amanda::pytorch {
namespace {

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  if (!a.has_storage() || !b.has_storage()) return true;
  return a.storage().is_alias_of(b.storage()) && a.storage_offset() == b.storage_offset() && same_shape(a, b) &&
         (a.is_nested() || a.strides().equals(b.strides()));
}

}  // namespace

// The original's own edge is not read: for a view that was made without recording, and is out of date, that is an
// error.
bool ShownHandle::stands_for(const at::Tensor& original, const at::Tensor& value) const {
  return handle_.defined() && handle_.is_same(value) && value.requires_grad() == requires_grad_ &&
         value.grad_fn().get() == node_ && !value.retains_grad() && same_memory(value, original);
}

}  // namespace amanda::pytorch
