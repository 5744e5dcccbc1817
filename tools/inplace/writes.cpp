#include "inplace/writes.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "values/tensors.h"

namespace amanda::tools::pytorch {
namespace {

constexpr size_t kKeptWrites = 16;  // of the last writes to a storage

std::optional<uint32_t> version_now(const at::Tensor& tensor) {
  return tensor.is_inference() ? std::nullopt : std::optional(static_cast<uint32_t>(tensor._version()));
}

void add_targets(std::vector<Target>& targets, uint32_t input, const c10::IValue& operand) {
  const auto add = [&](const c10::IValue& value, std::optional<uint32_t> member) {
    if (!value.isTensor() || !value.toTensor().defined()) return;
    targets.push_back({input, member, value.toTensor(), version_now(value.toTensor())});
  };
  if (!operand.isList()) return add(operand, std::nullopt);
  const c10::ArrayRef<c10::IValue> members = operand.toListRef();
  for (uint32_t i = 0; i < members.size(); ++i) add(members[i], i);
}

// Sparse tensors and wrappers of transformations have no storage. Nested tensors have no sizes, or symbols.
bool has_sizes(const at::Tensor& tensor) {
  return tensor.has_storage() && !tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

}  // namespace

void Writes::begin(uint32_t site, Values& inputs) {
  Begun begun{site, {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t position = inputs.position(i);
    add_targets(begun.targets, static_cast<uint32_t>(position), operand(inputs.call(), Side::kInputs, position));
  }
  const std::lock_guard lock(mutex_);
  std::swap(begun_[std::this_thread::get_id()], begun);  // what was there is destroyed without the mutex
}

void Writes::end() {
  const std::optional<Begun> begun = take_begun();
  if (!begun) return;
  for (const Target& target : begun->targets) {
    const std::optional<uint32_t> after = version_now(target.tensor);
    if (after && target.version && *after != *target.version && has_sizes(target.tensor)) {
      add(begun->site, target, *after);
    }
  }
}

std::optional<Begun> Writes::take_begun() {
  const std::lock_guard lock(mutex_);
  auto node = begun_.extract(std::this_thread::get_id());
  return node ? std::optional(std::move(node.mapped())) : std::nullopt;
}

void Writes::add(uint32_t site, const Target& target, uint32_t after) {
  const at::Tensor& tensor = target.tensor;
  Write write{site, target.input, target.member, *target.version, after, std::nullopt, tensor.sizes().vec()};
  if (tensor.is_view()) write.view = std::exchange(write.shape, tensor._base().sizes().vec());
  const c10::Storage& storage = tensor.storage();
  const std::lock_guard lock(mutex_);
  auto found = storages_.find(storage.unsafeGetStorageImpl());
  if (found == storages_.end()) {
    drop_dead();
    const void* key = storage.unsafeGetStorageImpl();
    found = storages_.emplace(key, OfStorage{storage.getWeakStorageImpl()}).first;
  }
  std::vector<Write>& writes = found->second.writes;
  writes.push_back(std::move(write));
  if (writes.size() > 2 * kKeptWrites) writes.erase(writes.begin(), writes.end() - kKeptWrites);
}

std::vector<Write> Writes::to(const void* storage) const {
  const std::lock_guard lock(mutex_);
  const auto found = storages_.find(storage);
  if (found == storages_.end() || found->second.storage.expired()) return {};
  const std::vector<Write>& writes = found->second.writes;
  return {writes.end() - static_cast<std::ptrdiff_t>(std::min(writes.size(), kKeptWrites)), writes.end()};
}

std::vector<std::vector<Write>> Writes::all() const {
  std::vector<std::vector<Write>> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, of_storage] : storages_) {
    if (!of_storage.storage.expired()) found.push_back(of_storage.writes);
  }
  return found;
}

void Writes::drop_dead() {
  if (storages_.size() < limit_) return;
  std::erase_if(storages_, [](const auto& entry) { return entry.second.storage.expired(); });
  limit_ = std::max<size_t>(1000, 2 * storages_.size());
}

}  // namespace amanda::tools::pytorch
