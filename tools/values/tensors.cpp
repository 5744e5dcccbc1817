#include "values/tensors.h"

namespace amanda::tools::pytorch {

bool is_readable(const at::Tensor& tensor) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kLazy({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});
  if (!is_plain(tensor) || !tensor.device().is_cpu() || tensor.layout() != c10::kStrided || tensor.is_quantized() ||
      tensor.key_set().has_any(kLazy)) {
    return false;
  }
  if (tensor.numel() == 0) return true;
  if (!tensor.has_storage() || !tensor.storage().data()) return false;
  int64_t last = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return static_cast<size_t>((last + 1) * tensor.element_size()) <= tensor.storage().nbytes();
}

std::optional<int64_t> output_bytes(OpCall& call) {
  int64_t sum = 0;
  for (size_t i = 0; i < call.size(Side::kOutputs); ++i) {
    const bool known = each_tensor(operand(call, Side::kOutputs, i), [&](const at::Tensor& tensor) {
      if (!is_plain(tensor)) return false;
      sum += tensor.numel() * static_cast<int64_t>(tensor.element_size());
      return true;
    });
    if (!known) return std::nullopt;
  }
  return sum;
}

}  // namespace amanda::tools::pytorch
