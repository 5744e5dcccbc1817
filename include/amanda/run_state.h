// The objects that a tool's routines share in one execution of an operator.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <typeinfo>
#include <vector>

#include "amanda/base/pool.h"

namespace amanda {

class OpCall;
class Tool;

/// An object that a tool's routines share; see Values::run().
class RunSlot {
 public:
  /// For Values::run().
  RunSlot() = default;
  virtual ~RunSlot() = default;
  RunSlot(const RunSlot&) = delete;
  RunSlot& operator=(const RunSlot&) = delete;

  /// Called when the operator, forward or backward, has ended, if a graph keeps the object.
  virtual void settle(OpCall&) {}

 private:
  friend class RunState;
  const Tool* tool_ = nullptr;  // only compared
  const std::type_info* type_ = nullptr;
  RunSlot* next_ = nullptr;
};

/// A shared object of type `T`. If `T` has a member `void settle(OpCall&)`, it can release references that would keep
/// the object's own graph alive.
template <class T>
class RunSlotOf final : public RunSlot, public Pooled<RunSlotOf<T>> {
 public:
  void settle(OpCall& call) override {
    if constexpr (requires(T & value) { value.settle(call); }) value.settle(call);
  }

  T value{};  ///< the object
};

/// The objects that routines share in one execution of a forward operator and in its backward operators: one object for
/// each tool and type. Used on any thread.
///
/// In a graph, a driver that can distinguish executions keeps one RunState for each operator and passes it to each of
/// the operator's taps, which do not overlap. The RunState of a backward operator is created with the one of its
/// forward operator. If the driver passes none, each run of a tap has its own.
class RunState {
 public:
  /// Nothing is shared yet. `forward`: for a backward operator, the RunState of the execution that created it, if that
  /// is known.
  explicit RunState(std::shared_ptr<RunState> forward = nullptr) : forward_(std::move(forward)) {}
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  /// The `forward` that was passed to the constructor.
  const std::shared_ptr<RunState>& forward() const { return forward_; }

 private:
  friend class Execution;
  friend class Values;
  RunSlot& slot(const Tool& tool, const std::type_info& type, RunSlot* (*make)());
  void settle(OpCall& call);

  // The number of executions that a scope counted before this one. Set while the forward operator runs.
  struct Count {
    uint64_t scope = 0, index = 0;  // scope: its serial number, or 0 if there is none
  };
  std::optional<uint64_t> index(uint64_t scope) const;
  void set_index(Count count);

  std::atomic<RunSlot*> slots_{nullptr};
  const std::shared_ptr<RunState> forward_;
  Count first_;  // most operators are seen by the tools of one scope
  std::vector<Count> rest_;
};
/// A shared RunState.
using RunStatePtr = std::shared_ptr<RunState>;

}  // namespace amanda
