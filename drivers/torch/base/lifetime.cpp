#include "base/lifetime.h"

#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "base/python_hooks.h"

namespace amanda::pytorch {

using torch::autograd::ForwardGrad;

// ---- Lifetime ------------------------------------------------------------------------------------------------------

// The deleter of the tensor's pointer to `record`.
struct Lifetime::End {
  std::shared_ptr<ForwardGrad> record;
  std::shared_ptr<Lifetime> lifetime;

  void operator()(ForwardGrad*) {
    const c10::TensorImpl* tensor = nullptr;
    void (*died)(const c10::TensorImpl*) = nullptr;
    {
      std::lock_guard lock(lifetime->mutex_);
      tensor = std::exchange(lifetime->tensor_, nullptr);
      died = lifetime->died_;
    }
    if (died) died(tensor);
  }
};

std::shared_ptr<Lifetime> Lifetime::of(const at::TensorBase& tensor) {
  torch::autograd::AutogradMeta* autograd = torch::autograd::impl::materialize_autograd_meta(tensor);
  std::lock_guard lock(autograd->mutex_);
  std::shared_ptr<ForwardGrad>& slot = autograd->fw_grad_;
  if (const End* end = std::get_deleter<End>(slot)) return end->lifetime;
  auto lifetime = std::make_shared<Lifetime>();
  auto record = slot ? slot : std::make_shared<ForwardGrad>();
  ForwardGrad* address = record.get();
  slot = std::shared_ptr<ForwardGrad>(address, End{std::move(record), lifetime});
  lifetime->tensor_ = tensor.unsafeGetTensorImpl();
  return lifetime;
}

void Lifetime::tell(void (*died)(const c10::TensorImpl*)) {
  std::lock_guard lock(mutex_);
  died_ = died;
}

bool Lifetime::over() const {
  std::lock_guard lock(mutex_);
  return !tensor_;
}

// ---- WeakTensor ----------------------------------------------------------------------------------------------------

WeakTensor::WeakTensor(const at::Tensor& tensor) {
  if (python_hooks.held_by_python) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    std::unique_ptr<Memory> memory;
    if (typeid(impl) == typeid(c10::TensorImpl) && impl.has_storage() && !impl.has_symbolic_sizes_strides()) {
      memory = std::make_unique<Memory>(Memory{impl.storage().getWeakStorageImpl(), impl.key_set(), impl.dtype(),
                                               c10::DimVector(impl.sizes()), c10::DimVector(impl.strides()),
                                               impl.storage_offset(), impl.version_counter()});
    }
    tensor_ = InPython{Lifetime::of(tensor), std::move(memory)};
  } else {
    tensor_ = Reference(tensor.getIntrusivePtr());
  }
}

bool WeakTensor::expired() const {
  if (const auto* reference = std::get_if<Reference>(&tensor_)) return reference->expired();
  return std::get<InPython>(tensor_).lifetime->over();
}

at::Tensor WeakTensor::lock() const {
  if (const auto* reference = std::get_if<Reference>(&tensor_)) {
    auto strong = reference->lock();
    return strong ? at::Tensor(std::move(strong)) : at::Tensor();
  }
  const auto& [lifetime, memory] = std::get<InPython>(tensor_);
  at::Tensor held = python_hooks.held_by_python(*lifetime);
  if (held.defined() || lifetime->over() || !memory) return held;
  return memory->tensor();
}

at::Tensor WeakTensor::Memory::tensor() const {
  auto alive = storage.lock();
  if (!alive) return {};
  at::Tensor other =
      at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(std::move(alive)), keys, dtype);
  other.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  other.unsafeGetTensorImpl()->set_version_counter(version);
  return other;
}

}  // namespace amanda::pytorch
