// Sets of active tools, and which of them see an operator.
#pragma once

#include <cstddef>

#include "amanda/base/thread_calls.h"
#include "amanda/tool.h"

namespace amanda {

class ScopeState;

inline constexpr size_t kMaxActiveTools = 64;

struct ActiveTool {
  Tool* tool;
  ScopeState* scope;  // its records hold the results of the analyses
  ToolBits bit;
  Registrations registrations;
  ToolBits dependents;  // active tools that depend on it, if it has an ON_DEMAND routine
  bool operator==(const ActiveTool&) const = default;
};

/// The tools that see a call, by reason.
struct Visibility {
  ToolBits outer = 0;     // asked for the type, and are inside no other operator they see
  ToolBits nested = 0;    // are inside one, and asked for nested calls of the type
  ToolBits demanded = 0;  // have a dependent that sees the call
  size_t backend = 0;     // the operator's driver: two drivers may use the same id
  bool nobody() const { return (outer | nested) == 0; }
  ToolBits any() const { return outer | nested | demanded; }
  bool operator==(const Visibility&) const = default;
};

}  // namespace amanda
