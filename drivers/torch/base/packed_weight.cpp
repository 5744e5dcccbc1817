#include "base/packed_weight.h"

#include <ATen/native/quantized/PackedParams.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "amanda/base/mutex.h"

namespace amanda::pytorch {
namespace {

using c10::ivalue::Object;

template <int kDimensions>
IntVector unpacked_sizes(const c10::IValue& packed) {
  return IntVector(std::get<0>(packed.toCustomClass<ConvPackedParamsBase<kDimensions>>()->unpack()).sizes());
}

/// Unpacking copies the weight, so it is done once for each.
class PackedSizes {
 public:
  std::optional<IntVector> find(const Object& packed) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(&packed);
    return found == sizes_.end() ? std::nullopt : std::optional(found->second.second);
  }

  void add(const c10::intrusive_ptr<Object>& packed, IntVector sizes) {
    const std::lock_guard lock(mutex_);
    // An object that is freed keeps its address until the weak reference is gone.
    if (sizes_.size() >= limit_) {
      std::erase_if(sizes_, [](const auto& entry) { return entry.second.first.expired(); });
      limit_ = std::max<size_t>(256, 2 * sizes_.size());
    }
    sizes_.insert_or_assign(packed.get(), std::pair(c10::weak_intrusive_ptr<Object>(packed), std::move(sizes)));
  }

 private:
  Mutex mutex_;  // guards the fields below
  std::unordered_map<const Object*, std::pair<c10::weak_intrusive_ptr<Object>, IntVector>> sizes_;
  size_t limit_ = 256;
};

}  // namespace

std::optional<IntVector> sizes_of_packed(const c10::IValue& operand) {
  static auto* const known = new PackedSizes;
  if (!operand.isCustomClass()) return std::nullopt;
  const auto name = operand.toObjectRef().type()->name();
  const bool is_2d = name && name->name() == "Conv2dPackedParamsBase";
  if (!is_2d && !(name && name->name() == "Conv3dPackedParamsBase")) return std::nullopt;
  if (auto sizes = known->find(operand.toObjectRef())) return sizes;
  try {
    IntVector sizes = is_2d ? unpacked_sizes<2>(operand) : unpacked_sizes<3>(operand);
    known->add(operand.toObject(), sizes);
    return sizes;
  } catch (const c10::Error&) {  // the weight was given up when it was packed
    return std::nullopt;
  }
}

}  // namespace amanda::pytorch
