// The one exception that Amanda itself throws.
#pragma once

#include <stdexcept>

namespace amanda {

/// Misuse or failure that Amanda found: the message says which part of Amanda reports it, what was found, and what
/// would work. An exception from a tool's own routine is never wrapped in it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace amanda
