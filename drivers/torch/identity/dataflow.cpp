#include "identity/dataflow.h"

#include <ATen/core/Tensor.h>

#include <unordered_map>

#include "base/hash.h"
#include "base/lifetime.h"
#include "identity/named_tensors.h"
#include "identity/origin.h"

namespace amanda::pytorch {
namespace {

struct Produced {
  WeakTensor tensor;  // distinguishes a live tensor from another at its address
  DataflowContext context;
};

struct Producers {
  std::unordered_map<const c10::TensorImpl*, Produced> known;
  uint64_t parameters = 0;
  size_t sweep_at = 1024;

  void put(const at::Tensor& tensor, const DataflowContext& context) {
    if (known.size() >= sweep_at) {
      std::erase_if(known, [](const auto& entry) { return entry.second.tensor.expired(); });
      sweep_at = std::max<size_t>(1024, 2 * known.size());
    }
    known.insert_or_assign(tensor.unsafeGetTensorImpl(), Produced{WeakTensor(tensor), context});
  }

  DataflowContext of(const at::Tensor& tensor) {
    auto found = known.find(tensor.unsafeGetTensorImpl());
    if (found != known.end() && !found->second.tensor.expired()) return found->second.context;
    const at::Tensor& origin = origin_of(tensor);
    DataflowContext context;
    context.fill(0);
    const uint64_t named = has_named_tensors() ? named_tensor_number(origin) : 0;
    if (named == 0) {
      const auto* autograd = autograd_of(origin);
      if (!autograd || !is_trained_leaf(*autograd)) return context;
    }
    if (!origin.is_same(tensor)) return of(origin);
    context.fill(named ? mix(2, named) : mix(1, ++parameters));
    put(tensor, context);
    return context;
  }
};

Producers& producers() {
  thread_local Producers table;
  return table;
}

}  // namespace

DataflowContext dataflow_context(uint64_t name_hash, c10::ArrayRef<OperandTensor> arguments) {
  DataflowContext context;
  context.fill(name_hash);
  for (const auto& [position, tensor] : arguments) {
    const DataflowContext operand = producers().of(*tensor);
    for (size_t depth = 1; depth < context.size(); ++depth) {
      context[depth] = mix(context[depth] + position, operand[depth - 1]);
    }
  }
  return context;
}

void remember_producer(const DataflowContext& context, c10::ArrayRef<OperandTensor> results) {
  for (size_t i = 0; i < results.size(); ++i) {
    DataflowContext of_result = context;
    for (uint64_t& hash : of_result) hash = mix(hash, i);
    producers().put(*results[i].tensor, of_result);
  }
}

}  // namespace amanda::pytorch
