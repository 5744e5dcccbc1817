// What is worth a warning when a scope is left: filters that matched nothing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "amanda/tool.h"

namespace amanda {

/// An analysis routine that no operator met while its scope was open, although operators ran. Each is reported once.
struct Unmatched {
  const Tool* tool;
  size_t registration;                   // among the tool's
  InstOptions options;                   // as it was registered
  bool ops_matched = false;              // its operators ran, in other modules only
  std::vector<std::string> elsewhere{};  // the paths of these, sorted; not all if they are many
};

/// "[scope] ops={"linear"} of tool 'prune' matched nothing: no such operator ran".
std::string describe(const Unmatched& unmatched);

}  // namespace amanda
