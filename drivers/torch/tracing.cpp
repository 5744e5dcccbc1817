#include "tracing.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "port.h"
#include "python_hooks.h"
#include "stack_value.h"

namespace amanda::pytorch {

bool is_traced(c10::ArrayRef<c10::IValue> operands) {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  if (c10::impl::dispatch_mode_enabled()) {
    for (auto mode : {TorchDispatchModeKey::FAKE, TorchDispatchModeKey::PROXY, TorchDispatchModeKey::FUNCTIONAL}) {
      if (TorchDispatchModeTLS::get_mode(mode)) return true;
    }
  }
  if (!python_hooks.is_symbolic) return false;
  bool symbolic = false;
  each_tensor(operands, [&](const at::Tensor& tensor) {
    if (tensor.key_set().has(c10::DispatchKey::Python)) symbolic |= python_hooks.is_symbolic(py_object(tensor));
  });
  return symbolic;
}

bool is_recomputed() { return port::inside_backward() && python_hooks.in_recompute && python_hooks.in_recompute(); }

bool belongs_to_backward() { return port::inside_backward() && !is_recomputed(); }

}  // namespace amanda::pytorch
