#include "rematerialization/value.h"

#include <utility>

namespace amanda::tools::rematerialization {
namespace {

const c10::Storage& no_memory() {
  static const c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kCPU));
  return storage;
}

at::Tensor copy_of(const at::Tensor& tensor, const c10::VariableVersion& version, const c10::Storage& storage) {
  auto impl = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(version, true);
  impl->set_storage_keep_dtype(storage);
  return at::Tensor(std::move(impl));
}

}  // namespace

Outline::Outline(const at::Tensor& tensor)
    : outline_(copy_of(tensor, tensor.unsafeGetTensorImpl()->version_counter(), no_memory())) {}

at::Tensor Outline::in(const c10::Storage& storage) const {
  return copy_of(outline_, c10::VariableVersion(/*version=*/0), storage);
}

bool is_plain(const at::Tensor& tensor) {
  using c10::DispatchKey;
  static const c10::DispatchKeySet special{
      DispatchKey::Python,      DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
      DispatchKey::Batched,     DispatchKey::Functionalize,    DispatchKey::ZeroTensor,
      DispatchKey::NestedTensor};
  return tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_inference() &&
         !tensor.is_quantized() && !tensor.key_set().has_any(special) && tensor.has_storage() && tensor.storage();
}

}  // namespace amanda::tools::rematerialization
