#include "tracing.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "port.h"
#include "python_hooks.h"

namespace amanda::pytorch {

bool is_traced(c10::DispatchKeySet key_set, c10::ArrayRef<OperandTensor> operands) {
  // Modes and tracers, and the tensors in question, all have their key in the set.
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kAny({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Tracer});
  if (!key_set.has_any(kAny)) return false;
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  if (torch::jit::tracer::isTracing()) return true;  // torch.jit.trace: what is recorded is the program's
  if (c10::impl::dispatch_mode_enabled()) {
    for (auto mode : {TorchDispatchModeKey::FAKE, TorchDispatchModeKey::PROXY, TorchDispatchModeKey::FUNCTIONAL}) {
      if (TorchDispatchModeTLS::get_mode(mode)) return true;
    }
  }
  if (!python_hooks.is_symbolic) return false;
  for (const OperandTensor& operand : operands) {
    const at::Tensor& tensor = *operand.tensor;
    if (tensor.key_set().has(c10::DispatchKey::Python) && python_hooks.is_symbolic(py_object(tensor))) return true;
  }
  return false;
}

bool is_recomputed() { return port::inside_backward() && python_hooks.in_recompute && python_hooks.in_recompute(); }

bool belongs_to_backward() { return port::inside_backward() && !is_recomputed(); }

}  // namespace amanda::pytorch
