// What is open on this thread.
#pragma once

#include <memory>

#include "scope_stack.h"

namespace amanda {

/// Tools inside one of their operators on this thread; innermost operator first in the list of frames.
struct OpFrame {
  OpFrame(ToolBits seeing);
  ~OpFrame();
  OpFrame(const OpFrame&) = delete;
  OpFrame& operator=(const OpFrame&) = delete;

  static ToolBits inside();            // on this thread
  static size_t depth(ToolBits tool);  // operators around the current one that the tool sees

 private:
  ToolBits seeing_, inside_before_;
  OpFrame* outer_;
};

/// A call of the core on this thread. What it works with may be let go of meanwhile, by a routine that leaves a scope
/// for instance, and stays alive until the outermost call ends.
struct CallFrame {
  CallFrame();
  ~CallFrame();
  CallFrame(const CallFrame&) = delete;
  CallFrame& operator=(const CallFrame&) = delete;

  static void keep(std::shared_ptr<const void> dropped);  // outside calls: lets it go
};

}  // namespace amanda
