#include "identity.h"

#include <array>
#include <memory>

#include "hash.h"
#include "python_hooks.h"
#include "stack_value.h"

namespace amanda::pytorch {
namespace {

// A parameter is an nn.Parameter, or any leaf that requires a gradient: they keep apart what a loop over weights would
// merge.
bool is_parameter(const at::Tensor& tensor) {
  _object* object = py_object(tensor);
  if (object && python_hooks.is_parameter && python_hooks.is_parameter(object)) return true;
  return tensor.requires_grad() && tensor.is_leaf();
}

// By addresses: they only ever find what was resolved, and a death among them starts a new epoch.
uint64_t raw_key(uint64_t raw_path, const OpRecord& record, c10::ArrayRef<c10::IValue> arguments) {
  uint64_t key = mix(raw_path, record.type);
  for (size_t i = 0; i < arguments.size(); ++i) {
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!is_parameter(tensor)) return;
      const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
      key = mix(mix(key + i, reinterpret_cast<uint64_t>(impl)), reinterpret_cast<uint64_t>(py_object(tensor)));
    });
  }
  return key;
}

struct Resolved {
  uint64_t key = 0, epoch = 0;
  OpId id = 0;
};

Resolved& front(uint64_t key) {
  using Table = std::array<Resolved, 4096>;
  thread_local std::unique_ptr<Table> table = std::make_unique<Table>();
  return (*table)[key % table->size()];
}

OpId resolve(uint64_t raw_path, const OpRecord& record, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<ParameterOperand> parameters;
  for (size_t i = 0; i < arguments.size(); ++i) {
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (is_parameter(tensor)) parameters.push_back({i, &tensor});
    });
  }
  return python_hooks.resolve(raw_path, record.name_hash, parameters);
}

}  // namespace

Identity identify(const OpRecord& record, c10::ArrayRef<c10::IValue> arguments) {
  Identity identity;
  identity.raw_path = python_hooks.raw_path ? python_hooks.raw_path() : 0;
  if (identity.raw_path == 0) {
    identity.dataflow = dataflow_context(record.name_hash, arguments);
    identity.id = identity.dataflow.back() | 1;
    return identity;
  }
  const uint64_t key = raw_key(identity.raw_path, record, arguments);
  const uint64_t epoch = python_hooks.epoch.load(std::memory_order_acquire);
  Resolved& known = front(key);
  if (known.key != key || known.epoch != epoch) {
    const OpId id = resolve(identity.raw_path, record, arguments);
    if (id == 0) return identity;
    known = {key, epoch, id};
  }
  identity.id = known.id;
  return identity;
}

}  // namespace amanda::pytorch
