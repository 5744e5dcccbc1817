// Memory for data that is kept about operators, away from the buffers of the program.
#pragma once

#include <cstddef>

#include "amanda/base/no_copy.h"

namespace amanda {

/// Memory that malloc returned on another thread. Null if there is none, or if the block is large. Freed by std::free()
/// or operator delete.
void* take_lasting(size_t size) noexcept;

/// While an object of this class exists, memory that the code of Amanda's libraries allocates on this thread, in blocks
/// of up to 512 bytes, comes from another arena of malloc than the thread's own. It is freed as any other memory, by
/// any library. Larger blocks, of tables, are few.
///
/// Data about an operator is allocated when the operator first runs. From the thread's own arena it would lie between
/// the program's large buffers, and stay there. PyTorch's CPU allocator takes buffers of up to 32 MiB from the heap,
/// and small blocks between them prevent that freed neighbors are joined. A train step of ResNet-50 at batch 8 had a
/// peak of 2.6 GB in place of 1.5.
class Lasting : NoCopy {
 public:
  Lasting() { ++depth(); }
  ~Lasting() { --depth(); }

  /// True if such an object exists on this thread.
  static bool is_on() { return depth() != 0; }

 private:
  friend void* take_lasting(size_t size) noexcept;
  static int& depth();
};

}  // namespace amanda
