// What a compiled graph's nodes look up when it runs.
#pragma once

#include <memory>
#include <vector>

#include "amanda/run_state.h"
#include "held.h"
#include "slot.h"

namespace amanda::pytorch {

/// Slots by number, for one instance of a graph under one toolset. Alive while a graph that gets it runs, or may still
/// run backward.
class Table final : public Held {
 public:
  explicit Table(std::vector<std::shared_ptr<const Slot>> slots) : slots_(std::move(slots)) {}

  /// Null: there is none.
  const Slot* at(int64_t number) const {
    return number < 0 || static_cast<size_t>(number) >= slots_.size() ? nullptr : slots_[number].get();
  }

 private:
  const std::vector<std::shared_ptr<const Slot>> slots_;
};

/// One execution of an operator: what its taps share, and those of its backward operator.
class Run final : public Held {
 public:
  /// `begins`: is it the first tap of the phase?
  RunStatePtr state(Phase phase, bool begins);

 private:
  const RunStatePtr forward_ = std::make_shared<RunState>();
  RunStatePtr backward_;
};

}  // namespace amanda::pytorch
