// Filters that matched nothing, which are worth a warning when a scope is left.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "amanda/tool.h"

namespace amanda {

/// An analysis routine whose filters matched nothing while its scope was open, although operators ran.
struct Unmatched {
  const Tool* tool;                      ///< alive as long as the scope
  size_t registration;                   ///< its index in the tool's registrations
  InstOptions options;                   ///< as it was registered
  bool ops_matched = false;              ///< its operators ran, but in other modules
  std::vector<std::string> elsewhere{};  ///< the paths of these modules, sorted; at most 256
};

/// The text for the log: "[scope] ops={"linear"} of tool 'prune' matched nothing that ran; ...", with hints at
/// operators that a program may run in their place. A scope's guard logs it, with what the scope's other routines saw.
std::string describe(const Unmatched& unmatched);

}  // namespace amanda
