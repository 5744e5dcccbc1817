// The operators that tools see, and the calls of the core, that this thread is inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "amanda/base/no_copy.h"

namespace amanda {

/// A set of active tools.
using ToolBits = uint64_t;

struct OpFrame;

/// This thread's state. It is looked up once per call of the core and passed on, because every lookup costs a function
/// call.
struct ThreadCalls {
  /// The calling thread's, at the same address as long as the thread lives.
  static ThreadCalls& current();

  ToolBits inside = 0;                                       ///< tools inside one of their operators
  OpFrame* innermost = nullptr;                              ///< the operators that they are inside
  size_t calls = 0;                                          ///< of the core
  std::vector<std::shared_ptr<const void>>* kept = nullptr;  ///< see CallFrame
};

/// Tools inside one of their operators on this thread; innermost operator first in the list of frames.
struct OpFrame : NoCopy {
  /// The operator that these tools see begins.
  OpFrame(ThreadCalls& thread, ToolBits seeing)
      : thread_(thread), seeing_(seeing), inside_before_(thread.inside), outer_(thread.innermost) {
    thread_.inside |= seeing;
    thread_.innermost = this;
  }
  ~OpFrame() {
    thread_.inside = inside_before_;
    thread_.innermost = outer_;
  }

  /// The number of operators around the current one that the tool sees.
  static size_t depth(ToolBits tool);

 private:
  ThreadCalls& thread_;
  ToolBits seeing_, inside_before_;
  OpFrame* outer_;
};

/// A call of the core on this thread. Objects that it uses may be released meanwhile, for instance by a routine that
/// leaves a scope; keep() keeps them alive until the outermost call ends.
struct CallFrame : NoCopy {
  /// The call begins.
  explicit CallFrame(ThreadCalls& thread) : thread_(thread) { ++thread_.calls; }
  ~CallFrame() {
    if (--thread_.calls == 0 && thread_.kept) let_go();
  }

  /// Keeps the object; outside calls: releases it.
  static void keep(std::shared_ptr<const void> dropped);

 private:
  void let_go();

  ThreadCalls& thread_;
};

}  // namespace amanda
