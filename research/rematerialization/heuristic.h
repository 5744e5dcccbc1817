// The choice of the value to evict: the one with the smallest score.
#pragma once

#include <cstdint>
#include <string_view>

#include "rematerialization/value.h"

namespace amanda::tools::rematerialization {

enum class Heuristic : uint8_t { kDtr, kDtrLocal, kMsps, kLru, kSize };

/// Throws `std::invalid_argument`.
Heuristic heuristic_of(std::string_view name);

/// `now`: the clock that Value::last_use is of.
double score(Heuristic heuristic, const Value& value, uint64_t now);

}  // namespace amanda::tools::rematerialization
