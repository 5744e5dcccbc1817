// Puts taps into a copy of a program.
#pragma once

#include <map>

#include "program.h"

namespace amanda::reference {

class Lowering {
 public:
  explicit Lowering(const std::vector<SitePlan>& sites);
  /// Visits operators in the order of GraphView::each_op(), so that they have the same numbers. Call it once.
  Program run(const Program& vanilla) { return copy(vanilla, {}); }

 private:
  Program copy(const Program& vanilla, const Location& around);

  std::map<size_t, std::vector<TapPtr>> taps_;
  size_t next_ = 0;  // the number of the next operator
};

}  // namespace amanda::reference
