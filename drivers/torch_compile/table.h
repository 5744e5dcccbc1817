// The tables in which a compiled graph's nodes look up data when it runs.
#pragma once

#include <memory>
#include <mutex>
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

  /// The slot with this number. Null if there is none.
  const Slot* at(int64_t number) const {
    return number < 0 || static_cast<size_t>(number) >= slots_.size() ? nullptr : slots_[number].get();
  }

 private:
  const std::vector<std::shared_ptr<const Slot>> slots_;
};

/// One execution of an operator, or of all operators of a graph inside a graph: the objects that the taps of an
/// operator share, and those of its backward operator.
class Run final : public Held {
 public:
  /// `op`: the forward operator; `begins`: true for the first tap of the phase.
  RunStatePtr state(const python::GraphOperator& op, Phase phase, bool begins);

 private:
  struct States {
    const python::GraphOperator* op;  // alive with the table, which the graph holds, too
    RunStatePtr forward, recomputed, backward;
  };
  States& of(const python::GraphOperator& op);

  std::mutex mutex_;
  std::vector<States> states_;
};

}  // namespace amanda::pytorch
