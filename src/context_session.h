// What an OpContext can reach while an analysis routine runs.
#pragma once

#include <memory>
#include <vector>

#include "scheduled_action.h"
#include "visibility.h"

namespace amanda {

struct ContextSession {
  OpSite& site;
  const ActiveTool& active;
  Point point;
  std::shared_ptr<ToolStatus> status;
  std::vector<ScheduledPtr> scheduled;
  bool may_mutate = false;
};

}  // namespace amanda
