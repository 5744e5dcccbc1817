// A routine that an analysis scheduled on an operator.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "amanda/driver/backend.h"
#include "amanda/routine.h"
#include "run_counter.h"

namespace amanda {

class ScopeState;
class Tool;
struct OpPlace;

/// The state of a tool in a scope: whether it still runs. Shared by all actions of the tool there.
struct ToolStatus {
  explicit ToolStatus(std::string name) : tool(std::move(name)) {}

  const std::string tool;  // its name, also after the tool is gone
  std::atomic<bool> stopped{false};
  std::atomic<uint64_t> changes{0};  // counts stops, and removals of actions that may be traced into a graph
};

struct ScheduledAction : ActionInfo {
  RoutinePtr routine;
  Tool* tool;
  ScopeState* scope;  // alive while the action can run
  std::shared_ptr<ToolStatus> status;
  std::shared_ptr<const OpPlace> place;

  bool with_run = false;                // its runs are counted: `counter` is set when the analysis has returned
  std::shared_ptr<RunCounter> counter;  // of the forward operator; null if the routine does not use it

  std::atomic<bool> removed{false};
  // The effects of its recorded runs so far: an in-place operator is prepared for an edit until a run is seen that
  // edits nothing.
  mutable std::atomic<bool> looked{false}, edited{false};
  mutable std::atomic<bool> told{false};  // that an edit stops a gradient

  Edit edits() const {
    if (only_looks()) return Edit::kNo;
    if (edited || mode == RoutineMode::kAmbient) return Edit::kYes;
    return looked ? Edit::kNo : Edit::kUnknown;
  }
};
using ScheduledPtr = std::shared_ptr<ScheduledAction>;

}  // namespace amanda
