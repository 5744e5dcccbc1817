// The hash that ids are made with.
#pragma once

#include <cstdint>

namespace amanda::pytorch {

/// Order matters: mix(mix(h, a), b) is not mix(mix(h, b), a).
inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

}  // namespace amanda::pytorch
