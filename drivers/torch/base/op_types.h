// Operator types: the driver's data about each schema, computed once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "amanda/base/mutex.h"
#include "amanda/driver/backend.h"

namespace amanda::pytorch {

struct OpRecord {
  OpType type;
  OpInfo info;
  c10::FunctionSchema schema;      // a copy: operators can be deregistered
  uint64_t name_hash = 0;          // of namespace, name and overload: the same in every process
  bool noise = false;              // framework bookkeeping, not an operator
  bool random = false;             // draws random numbers
  bool asynchronous = false;       // continues after it has returned: a collective
  bool takes_symbols = false;      // has arguments that a tracer may pass a SymInt for
  bool metadata_in_place = false;  // resize_, transpose_ ...: an in-place operator that does not change values
  bool writes_late = false;        // a collective that writes to arguments its schema calls read-only
  std::vector<size_t> mutated;     // arguments that it writes to
  std::vector<size_t> undeclared;  // arguments that it may write to, though its schema calls them read-only
  std::vector<std::optional<size_t>> result_mutated;  // per result: the written argument that it is
  std::optional<size_t> viewed;                       // an argument, not written, that a result may be a view of
};

class OpTypes {
 public:
  /// The record of an operator; valid as long as the process.
  const OpRecord& of(const c10::OperatorHandle& op);
  const OpRecord& of(OpType type) const;
  /// A torch.autograd.Function of that name, as an operator: "autograd::NAME".
  const OpRecord& python_function(const std::string& name);
  /// Called when an operator is deregistered: its schema's address may be reused by another one.
  void forget(const c10::OperatorHandle& op);

 private:
  const OpRecord& add(const c10::FunctionSchema& schema, const c10::OperatorHandle& op);

  mutable Mutex mutex_;
  std::deque<std::unique_ptr<const OpRecord>> records_;
  // By the schema's address, which is freed when an operator is deregistered: then its entry is dropped, and `epoch_`
  // invalidates the threads' own tables.
  std::unordered_map<const c10::FunctionSchema*, const OpRecord*> by_address_;
  std::unordered_map<std::string, const OpRecord*> functions_;
  std::atomic<uint64_t> epoch_{1};
};

OpTypes& op_types();

/// The operators that write to arguments their schemas call read-only, with the arguments' names.
struct UndeclaredWrites {
  std::string_view op;  // "aten::batch_norm", all overloads
  std::vector<std::string_view> arguments;
};
const std::vector<UndeclaredWrites>& undeclared_writes();

}  // namespace amanda::pytorch
