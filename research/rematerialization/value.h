// The tool's knowledge of a program: values, and the calls of operators that computed them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace amanda::tools::rematerialization {

struct Call;

/// An operator at its place in a module, and what happened to its results.
struct Site {
  std::string op, module_path;
  std::optional<c10::OperatorHandle> handle;
  const char* kept_because = nullptr;      // why its results cannot be computed again; null if they can
  std::vector<size_t> written;             // positions of the inputs that it changes in place
  std::vector<size_t> running_statistics;  // positions of the inputs that batch normalization changes in training
  std::optional<size_t> training, dropout;
  bool random = false, always_trains = false;
  int64_t evicted = 0, evicted_bytes = 0, recomputed = 0, recompute_ns = 0;
};

/// Memory that stays: evicted values are computed from it, and no call makes it again.
struct Pin {
  c10::Storage memory;
};

/// The contents of a storage, from the time when an operator or other code made them until they are changed in place.
struct Value {
  c10::weak_intrusive_ptr<c10::StorageImpl> memory;  // expired if it is evicted, or not needed any more
  c10::StorageImpl* key;                             // where it is found; only compared
  c10::Storage held;                                 // while the graph has saved it and it is not evicted
  c10::Storage changed;                              // where the program has it no more, but saved tensors read it
  std::weak_ptr<Pin> pin;                            // belongs to the calls that it is an input of
  std::shared_ptr<Call> call;                        // that computed it; null if the value is kept
  const char* kept_because = nullptr;
  std::vector<std::weak_ptr<Call>> uses;  // recorded calls that have it as an input
  Site* site;
  size_t bytes;
  size_t saved = 0;               // the number of saved tensors that need it
  std::optional<size_t> held_at;  // index among those that are held
  uint64_t last_use = 0, writes = 0;
  bool moved = false;   // it is no longer in the storage in which the program had it
  bool needed = false;  // evicted values are computed from it
  bool evicted = false;

  explicit Value(const c10::Storage& storage, Site& site)
      : memory(storage.getWeakStorageImpl()),
        key(storage.unsafeGetStorageImpl()),
        site(&site),
        bytes(storage.nbytes()) {}
  bool alive() const { return !memory.expired(); }
  c10::Storage lock() const { return c10::Storage(memory.lock()); }
  /// It must be alive.
  std::shared_ptr<Pin> pinned() {
    std::shared_ptr<Pin> now = pin.lock();
    if (!now) pin = now = std::make_shared<Pin>(Pin{lock()});
    return now;
  }
};
using ValuePtr = std::shared_ptr<Value>;

/// A tensor without its memory.
class Outline {
 public:
  Outline() = default;
  explicit Outline(const at::Tensor& tensor);
  /// The tensor, in this memory. Its version counter is new.
  at::Tensor in(const c10::Storage& storage) const;
  /// The version of the tensor that it was taken from, and that the program may change.
  uint32_t version() const { return outline_.unsafeGetTensorImpl()->version_counter().current_version(); }
  const at::Tensor& tensor() const { return outline_; }

 private:
  at::Tensor outline_;
};

/// An input of a call.
struct Operand {
  ValuePtr value;
  Outline outline;
  uint32_t version;
  uint64_t writes;
  bool requires_grad;
  std::shared_ptr<Pin> pin{};

  /// True if the value is still the one that was passed to the call.
  bool unchanged() const { return value->writes == writes && (value->moved || outline.version() == version); }
};

/// One run of an operator: all that is needed to run it again.
struct Call {
  struct Output {
    size_t position, member;
    std::weak_ptr<Value> value;
  };
  enum class Repeatable : uint8_t { kUnknown, kYes, kNo };

  Site* site;
  std::vector<c10::IValue>
      arguments;  // tensors are outlines, in the order of `inputs`; running statistics are themselves
  std::vector<Operand> inputs;
  std::vector<Output> outputs;
  std::optional<c10::impl::LocalDispatchKeySet> keys;
  at::ScalarType autocast_dtype;
  bool trains;
  double cost;
  Repeatable repeatable = Repeatable::kUnknown;
  uint64_t visit = 0;  // of the last walk that came here

  ~Call();
  bool evicted() const;
};

/// True if the tensor's memory can be dropped, and made again.
bool is_plain(const at::Tensor& tensor);

/// The operand with `fn(tensor)` in place of each defined tensor, also in lists.
template <class Fn>
c10::IValue map_tensors(const c10::IValue& operand, const Fn& fn) {
  if (operand.isTensor()) return operand.toTensor().defined() ? c10::IValue(fn(operand.toTensor())) : operand;
  if (operand.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& member : operand.toTensorVector()) list.push_back(member.defined() ? fn(member) : member);
    return list;
  }
  if (operand.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& member : operand.toOptionalTensorVector()) {
      list.push_back(member && member->defined() ? std::optional<at::Tensor>(fn(*member)) : member);
    }
    return list;
  }
  return operand;
}

}  // namespace amanda::tools::rematerialization
