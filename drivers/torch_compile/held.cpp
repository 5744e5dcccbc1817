#include "held.h"

#include <c10/core/Storage.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "amanda/base/mutex.h"

namespace amanda::pytorch {
namespace {

/// For copies of a held object's tensor, by number.
struct Registry {
  static Registry& get() {
    static auto* registry = new Registry;  // leaked: threads may outlive static objects
    return *registry;
  }

  Mutex mutex;
  std::unordered_map<int64_t, std::weak_ptr<Held>> held;
};

void release(void* owner) { delete static_cast<std::shared_ptr<Held>*>(owner); }

}  // namespace

Held::Held() {
  static std::atomic<int64_t> next{1};
  number_ = next++;
}

Held::~Held() {
  Registry& registry = Registry::get();
  std::lock_guard lock(registry.mutex);
  registry.held.erase(number_);
}

at::Tensor Held::tensor() {
  const std::shared_ptr<Held> self = shared_from_this();
  {
    Registry& registry = Registry::get();
    std::lock_guard lock(registry.mutex);
    registry.held.try_emplace(number_, self);
  }
  c10::DataPtr data(&number_, new std::shared_ptr<Held>(self), &release, c10::Device(c10::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof(number_), std::move(data), nullptr, false);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<int64_t>());
  made.unsafeGetTensorImpl()->set_sizes_contiguous({});
  return made;
}

std::shared_ptr<Held> Held::find(const at::Tensor& tensor) {
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() == &release) return *static_cast<std::shared_ptr<Held>*>(data.get_context());
  Registry& registry = Registry::get();
  const int64_t number = tensor.item<int64_t>();
  std::lock_guard lock(registry.mutex);
  auto found = registry.held.find(number);
  return found == registry.held.end() ? nullptr : found->second.lock();
}

}  // namespace amanda::pytorch
