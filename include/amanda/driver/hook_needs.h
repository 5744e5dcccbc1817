// The hooks that a driver must prepare for a backward operator.
#pragma once

namespace amanda {

/// The hooks that a driver must install around a backward operator that was just created.
struct HookNeeds {
  bool before = false;   ///< actions or analyses before it
  bool replace = false;  ///< a replacement
  bool after = false;    ///< actions or analyses after it
  bool follow = false;   ///< tools also see the backward operators that it creates itself (double backward)
  bool pending = false;  ///< an analysis still has to run, and may schedule anything
  bool run = false;      ///< a routine may use an object that it shares with the forward operator's: see RunSource
  /// True if any hook is needed.
  bool any() const { return before || replace || after || follow || pending; }
};

}  // namespace amanda
