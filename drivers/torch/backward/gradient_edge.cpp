#include "backward/gradient_edge.h"

#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_unpack_dual.h>
#include <ATen/ops/add.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/sub.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "base/stack_value.h"
#include "base/tensor_handle.h"
#include "thread/guards.h"

namespace amanda::pytorch {
namespace {

bool recorded_by(const RoutineState& routine, const at::Tensor& value) {
  if (!value.requires_grad()) return false;
  if (routine.mode() == RoutineMode::kAmbient) return true;
  const torch::autograd::Node* node = node_behind(value);  // the routine may have enabled gradients itself
  return node && node->sequence_nr() >= routine.first_node() && node->sequence_nr() != UINT64_MAX;
}

// True if forward mode is active here. False inside a kernel that autograd called: tangents are computed above it.
bool differentiates_forward() {
  return torch::autograd::ForwardADLevel::try_get_by_idx(0) &&
         !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality);
}

// Straight-through in forward mode too: `value` with the tangent of `old`, while a dual level is open.
at::Tensor with_tangent_of(const at::Tensor& old, const at::Tensor& value) {
  if (!differentiates_forward() || !same_shape(old, value)) return value;
  const at::Tensor tangent = std::get<1>(at::_unpack_dual(old, 0));
  if (!tangent.defined()) return value;
  return at::_make_dual(std::get<0>(at::_unpack_dual(value, 0)), tangent, 0);
}

// Under nested torch.func transforms an edge belongs to one level only, and so does a tangent. `old - old` is zero, and
// its derivative is one at all of them; where `old` is not finite the difference would be NaN.
at::Tensor straight_through_all_levels(const at::Tensor& old, const at::Tensor& value, bool records) {
  const c10::AutoGradMode mode(records);
  return at::add(value, at::nan_to_num(at::sub(old, old.detach()), 0.0));
}

}  // namespace

at::Tensor in_place_of(const at::Tensor& old, const at::Tensor& value) {
  const RoutineState* routine = RoutineState::current();
  if (!routine || !value.defined() || value.is_same(old) || recorded_by(*routine, value)) return value;
  if (!old.defined()) return value.requires_grad() ? alias_of(value) : value;
  return stand_in_for(old, value);
}

bool stops_gradient(const at::Tensor& old, const at::Tensor& value) {
  if (!old.defined() || !value.defined() || !old.requires_grad() || same_shape(value, old)) return false;
  const RoutineState* routine = RoutineState::current();
  return routine && !recorded_by(*routine, value) && RoutineState::program_records_now();
}

at::Tensor stand_in_for(const at::Tensor& old, const at::Tensor& value) {
  const bool records = RoutineState::program_records_now() && old.requires_grad();
  const bool wrapped = old.key_set().has_any(kFunctorchWrappers);
  const at::Tensor stand_in = wrapped ? value : with_tangent_of(old, value);
  const bool differentiates = records || (wrapped && differentiates_forward());
  if (!differentiates) return stand_in.requires_grad() ? alias_of(stand_in) : stand_in;
  at::Tensor handle = alias_of(stand_in);
  if (!same_shape(handle, old)) return handle;  // see stops_gradient()
  if (wrapped) return straight_through_all_levels(old, handle, records);
  take_over_edge(old, handle);
  return handle;
}

}  // namespace amanda::pytorch
