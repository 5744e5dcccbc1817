#include "identity.h"

#include "python_hooks.h"
#include "stack_value.h"

namespace amanda::pytorch {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

bool is_parameter(const at::Tensor& tensor) {
  if (tensor.is_leaf() && tensor.requires_grad()) return true;
  _object* object = python_hooks.is_parameter ? py_object(tensor) : nullptr;
  return object && python_hooks.is_parameter(object);
}

}  // namespace

OpId identify(const OpRecord& record, uint64_t call_path, c10::ArrayRef<c10::IValue> arguments) {
  uint64_t hash = mix(record.name_hash, call_path);
  for (size_t i = 0; i < arguments.size(); ++i) {
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (is_parameter(tensor)) hash = mix(hash + i, reinterpret_cast<uint64_t>(tensor.unsafeGetTensorImpl()));
    });
  }
  return hash ? hash : 1;
}

}  // namespace amanda::pytorch
