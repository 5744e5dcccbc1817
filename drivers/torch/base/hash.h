// The hash that ids are computed with.
#pragma once

#include <cstdint>
#include <string_view>

namespace amanda::pytorch {

/// Order matters: mix(mix(h, a), b) is not mix(mix(h, b), a).
inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

inline uint64_t fnv1a(std::string_view text, uint64_t hash = 14695981039346656037ull) {
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

}  // namespace amanda::pytorch
