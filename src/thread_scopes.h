// What is open on this thread.
#pragma once

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

}  // namespace amanda
