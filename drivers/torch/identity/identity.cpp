#include "identity/identity.h"

#include <c10/util/flat_hash_map.h>

#include <vector>

#include "amanda/base/lasting.h"
#include "amanda/base/per_thread.h"
#include "base/hash.h"
#include "base/python_hooks.h"
#include "identity/named_tensors.h"
#include "identity/origin.h"
#include "thread/keys.h"

namespace amanda::pytorch {
namespace {

struct Operand {
  const at::TensorBase& tensor;  // the tensor that determines its identity
  uint64_t tag;
  bool counts;
};

uint64_t tag_of(const at::TensorBase& tensor) {
  constexpr uint64_t kNoObject = ~uint64_t{1};
  _object* object = py_object(tensor);
  return object ? python_hooks.tag(tensor.unsafeGetTensorImpl(), object) : kNoObject;
}

// A parameter is an nn.Parameter, a buffer of a known model, a view of one, or any leaf that requires a gradient.
// Parameters distinguish the operators of a loop over weights. Views are not leaves here, although PyTorch calls them
// leaves when no gradients are recorded.
inline Operand as_parameter(const at::Tensor& tensor) {
  const uint64_t tag = tag_of(tensor);
  if (tag & 1) return {tensor, tag, true};
  const auto* autograd = autograd_of(tensor);
  if (!autograd) return {tensor, tag, false};
  if (const at::Tensor* base = base_of(*autograd)) {
    const uint64_t tag_of_base = tag_of(*base);
    return {*base, tag_of_base, (tag_of_base & 1) != 0};
  }
  return {tensor, tag, is_trained_leaf(*autograd)};
}

// The path consists of addresses. They are only used to look up resolved places, and the death of one of the objects
// starts a new epoch. Parameters are distinguished by their numbers; those without a number count as equal. Always
// inlined: in raw_place() a call would be a fourth of the work.
[[gnu::always_inline]] inline uint64_t raw_key(uint64_t raw_path, const OpRecord& record,
                                               c10::ArrayRef<OperandTensor> arguments) {
  uint64_t key = mix(raw_path, record.type);
  for (const auto& [position, tensor] : arguments) {
    const Operand operand = as_parameter(*tensor);
    if (operand.counts) key = mix(key + position, operand.tag);
  }
  return key;
}

/// The ids that this thread has resolved, by raw key. They hold in any scopes, unlike those of PlaceTable: to
/// resolve a place costs a thousand times as much as to find it.
class KnownPlaces {
 public:
  /// The id, or 0 if the place is not known in this epoch.
  OpId find(uint64_t key, uint64_t epoch) const {
    const auto found = places_.find(key);
    return found != places_.end() && found->second.epoch == epoch ? found->second.id : 0;
  }
  void add(uint64_t key, uint64_t epoch, OpId id) {
    constexpr size_t kMost = 1 << 16;
    if (places_.size() >= kMost) places_.clear();
    places_[key] = {epoch, id};
  }

 private:
  struct Place {
    uint64_t epoch = 0;
    OpId id = 0;
  };
  ska::flat_hash_map<uint64_t, Place> places_;
};

OpId resolve(uint64_t raw_path, const OpRecord& record, c10::ArrayRef<OperandTensor> arguments) {
  std::vector<TensorOperand> tensors;
  for (const auto& [position, tensor] : arguments) {
    const Operand operand = as_parameter(*tensor);
    tensors.push_back({position, &operand.tensor, operand.counts});
  }
  return python_hooks.resolve(raw_path, record.name_hash, tensors);
}

}  // namespace

std::string parameter_name(const at::Tensor& tensor) {
  if (!tensor.defined()) return "";
  std::string name;
  if (python_hooks.parameter_name) {
    const Operand operand = as_parameter(tensor);
    _object* object = operand.counts ? py_object(operand.tensor) : nullptr;
    if (object) name = python_hooks.parameter_name(object);
  }
  return name.empty() && has_named_tensors() ? named_tensor(tensor) : name;
}

[[gnu::hot]] RawPlace raw_place(void*& walk, const OpRecord& record, c10::ArrayRef<OperandTensor> arguments) {
  RawPlace raw;
  const auto raw_path = python_hooks.raw_path.load(std::memory_order_relaxed);
  if (!raw_path || (raw.path = raw_path(walk)) == 0) return raw;
  raw.epoch = python_hooks.epoch.load(std::memory_order_acquire);
  raw.key = raw_key(raw.path, record, arguments);
  return raw;
}

Identity identify(const OpRecord& record, c10::ArrayRef<OperandTensor> arguments, RawPlace raw) {
  if (raw.path == 0 || raw.epoch != python_hooks.epoch.load(std::memory_order_acquire)) {
    raw = raw_place(thread_keys().walk, record, arguments);
  }
  Identity identity;
  identity.raw_path = raw.path;
  if (identity.raw_path == 0) {
    identity.dataflow = dataflow_context(record.name_hash, arguments);
    identity.id = identity.dataflow.back() | 1;
    return identity;
  }
  KnownPlaces& places = per_thread<KnownPlaces>();
  if ((identity.id = places.find(raw.key, raw.epoch)) != 0) {
    identity.key = raw.key;
    identity.epoch = raw.epoch;
    return identity;
  }
  const Lasting memory;
  identity.id = resolve(identity.raw_path, record, arguments);
  if (identity.id == 0) return identity;
  const uint64_t numbered = raw_key(identity.raw_path, record, arguments);
  places.add(numbered, raw.epoch, identity.id);
  return identity;
}

}  // namespace amanda::pytorch
