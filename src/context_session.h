// The data that an OpContext can reach while an analysis routine runs.
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
  size_t registration;  // of the tool
  std::shared_ptr<ToolStatus> status;
  std::shared_ptr<const OpPlace> place;  // made for the first action
  std::vector<ScheduledPtr> scheduled;
  bool may_mutate = false;
};

}  // namespace amanda
