#include "held.h"

#include <c10/core/Storage.h>

#include <atomic>

#include "amanda/base/leaked.h"
#include "amanda/base/weak_table.h"

namespace amanda::pytorch {
namespace {

/// For copies of a held object's tensor.
using Registry = WeakTable<Held>;

void release(void* owner) { delete static_cast<std::shared_ptr<Held>*>(owner); }

}  // namespace

Held::Held() {
  static std::atomic<int64_t> next{1};
  number_ = next++;
}

at::Tensor Held::tensor() {
  const std::shared_ptr<Held> self = shared_from_this();
  leaked<Registry>().add(number_, self);
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
  return leaked<Registry>().find(tensor.item<int64_t>());
}

}  // namespace amanda::pytorch
