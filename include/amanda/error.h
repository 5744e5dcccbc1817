// The one exception that Amanda itself throws.
#pragma once

#include <stdexcept>

namespace amanda {

/// Misuse or failure that Amanda found: the message says who speaks, what was found, what would work.
/// What a tool's own routine throws is never wrapped in it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace amanda
