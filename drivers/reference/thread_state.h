// The driver's state of a thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "amanda/driver/backend.h"

namespace amanda::reference {

struct ThreadState {
  ScopeStack* scopes = nullptr;     // given by the core, in switch_to
  std::optional<RoutineMode> mode;  // of the running routine: its operators belong to the tool, not to the program
  bool inside_hidden = false;       // in an operator whose insides no tool can see
  bool in_backward = false;         // gradients of gradients are not recorded

  OpId place = 1;                   // hash of the places around; 0 if there are none
  std::vector<std::string> labels;  // the same, as text
  std::function<void(const OpInfo&)> listener;

  bool recording() const { return !in_backward && mode != RoutineMode::kIsolated; }
  /// The scopes that observe a call. Null if the call is not to be shown to the core.
  ScopeStack* observing() const { return mode || inside_hidden ? nullptr : scopes; }
};

extern thread_local ThreadState this_thread;

}  // namespace amanda::reference
