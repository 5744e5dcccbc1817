// The log lines about filters that matched nothing.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "amanda/unmatched.h"

namespace amanda {

/// Operators as (name, number of places), most frequent first.
using SeenTypes = std::vector<std::pair<std::string, size_t>>;

/// The routines of one tool whose operators did not run are one line.
std::vector<std::string> lines_of(const std::vector<Unmatched>& unmatched, const SeenTypes& seen);

}  // namespace amanda
