// The tools that saw a forward operator; used when its backward operators run.
#pragma once

#include <memory>
#include <vector>

#include "visibility.h"

namespace amanda {

/// Immutable, and shared by the backward operators of many runs. It keeps nothing alive: tools are only compared, and a
/// scope's serial number is never reused.
struct Subscription {
  struct Seen {
    const Tool* tool;
    uint64_t scope;
    ToolBits bit;
    std::weak_ptr<const ScopeState> alive;
    bool operator==(const Seen& other) const { return tool == other.tool && scope == other.scope; }
  };

  uint64_t stack;   // serial number of the scope stack in which it was made
  Visibility seen;  // in the bits of that stack
  std::vector<Seen> tools;
};

}  // namespace amanda
