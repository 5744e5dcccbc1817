// The hash of texts that ids are made of.
#pragma once

#include <cstdint>
#include <string_view>

namespace amanda::python {

/// The same as hash_of_text() in amanda/identity/frames.py: BLAKE2b of 8 bytes, as a little-endian number.
uint64_t blake2b(std::string_view text);

}  // namespace amanda::python
