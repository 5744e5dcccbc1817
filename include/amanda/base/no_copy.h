// Objects that are not copied.
#pragma once

namespace amanda {

/// A base class: objects of derived classes are neither copied nor moved.
struct NoCopy {
  NoCopy() = default;
  NoCopy(const NoCopy&) = delete;             ///< not copied
  NoCopy& operator=(const NoCopy&) = delete;  ///< not assigned
};

}  // namespace amanda
