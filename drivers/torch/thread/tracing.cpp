#include "thread/tracing.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>

#include "base/port.h"
#include "base/python_hooks.h"

namespace amanda::pytorch {

namespace {

// True if the tensor represents one of another run. Tracers hide their keys from the operators that they call
// themselves.
bool is_stand_in(const at::Tensor& tensor) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const bool by_python = impl->key_set().has(c10::DispatchKey::Python);
  const bool symbolic_size = impl->has_symbolic_sizes_strides();
  if (C10_LIKELY(!by_python && !symbolic_size)) return false;
  if (by_python && python_hooks.is_symbolic && python_hooks.is_symbolic(py_object(tensor))) return true;
  if (!symbolic_size) return false;
  const c10::SymIntArrayRef sizes = impl->sym_sizes_default();
  return std::any_of(sizes.begin(), sizes.end(), [](const c10::SymInt& size) { return is_symbol(size); });
}

}  // namespace

bool is_traced(c10::DispatchKeySet key_set, c10::ArrayRef<OperandTensor> operands) {
  for (const OperandTensor& operand : operands) {
    if (is_stand_in(*operand.tensor)) return true;
  }
  // Modes and tracers add their key to the set.
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kAny({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Tracer});
  if (!key_set.has_any(kAny)) return false;
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  if (torch::jit::tracer::isTracing()) return true;  // torch.jit.trace: only the program must be recorded
  if (!c10::impl::dispatch_mode_enabled()) return false;
  for (auto mode : {TorchDispatchModeKey::FAKE, TorchDispatchModeKey::PROXY, TorchDispatchModeKey::FUNCTIONAL}) {
    if (TorchDispatchModeTLS::get_mode(mode)) return true;
  }
  return false;
}

bool is_recomputed() { return port::inside_backward() && python_hooks.in_recompute && python_hooks.in_recompute(); }

bool belongs_to_backward() { return port::inside_backward() && !is_recomputed(); }

}  // namespace amanda::pytorch
