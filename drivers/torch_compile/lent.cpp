#include "lent.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "amanda/log.h"
#include "coverage/coverage_counter.h"

namespace amanda::pytorch {
namespace {

bool can_be_lent(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet wrappers({c10::DispatchKey::Python, c10::DispatchKey::Functionalize});
  return tensor.defined() && !tensor.requires_grad() && tensor.layout() == at::kStrided && !tensor.is_nested() &&
         tensor.has_storage() && !tensor.is_meta() && !tensor.key_set().has_any(wrappers);
}

void warn_of_array(const Operator& op) {
  log_warning_once(
      c10::str("[compile] a routine called numpy() on a tensor of ", op.backend->info(op.type).name,
               op.module_path.empty() ? "" : " in ", op.module_path, op.source.empty() ? "" : " at ", op.source,
               ", and keeps the tensor or the array. Compiled code reuses its memory, and an array is not told: keep ",
               "tensor.numpy().copy()"));
}

void own(const c10::Storage& lent, const Operator* op) {
  c10::StorageImpl* storage = lent.unsafeGetStorageImpl();
  if (!storage->resizable() && op) warn_of_array(*op);  // numpy() has made it so
  const OwnWork uncounted;
  const c10::InferenceMode no_inference(false);
  const c10::AutoGradMode no_grad(false);
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(storage->device());
  const auto size = static_cast<int64_t>(storage->nbytes());
  at::Tensor from = at::empty({0}, bytes), to = at::empty({size}, bytes);
  from.unsafeGetTensorImpl()->set_storage_keep_dtype(lent);
  from.unsafeGetTensorImpl()->set_sizes_contiguous({size});
  to.copy_(from);
  storage->set_data_ptr_noswap(
      to.storage().unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, storage->device())));
}

}  // namespace

at::Tensor Lent::tensor(const at::Tensor& original) {
  if (!can_be_lent(original)) return original;
  c10::StorageImpl* storage = original.storage().unsafeGetStorageImpl();
  auto found =
      std::find_if(storages_.begin(), storages_.end(), [&](const One& one) { return one.original == storage; });
  if (found == storages_.end()) {
    c10::DataPtr memory(const_cast<void*>(storage->data()), storage->device());
    c10::Storage lent(c10::Storage::use_byte_size_t(), storage->nbytes(), std::move(memory),
                      c10::GetAllocator(storage->device_type()), /*resizable=*/true);
    found = storages_.insert(storages_.end(), {storage, std::move(lent)});
  }
  const bool is_inference = original.is_inference();
  auto made = original.unsafeGetTensorImpl()->shallow_copy_and_detach(
      is_inference ? c10::VariableVersion() : c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  made->set_storage_keep_dtype(found->lent);
  return at::Tensor(std::move(made));
}

Lent::~Lent() {
  for (const One& one : storages_) {
    if (one.lent.use_count() == 1 || one.lent.nbytes() == 0 || one.lent.data() != one.original->data()) continue;
    try {
      own(one.lent, op_);
    } catch (const std::exception& error) {  // no memory is left: an error at the next use, and no wrong values
      log_warning(c10::str("[compile] a tensor that a routine kept is lost: ", error.what()));
      one.lent.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, one.lent.device()));
      one.lent.set_nbytes(0);
    }
  }
}

}  // namespace amanda::pytorch
