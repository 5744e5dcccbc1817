#include "record.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "context_session.h"

namespace amanda {

Record::~Record() {
  for (auto& [tool, registrations] : tools) {
    for (PerRegistration& registration : registrations) {
      for (const ScheduledPtr& action : registration.actions) {
        action->removed = true;
        action->routine->retire();
      }
    }
  }
}

Record::PerRegistration& Record::of(const Tool* tool, size_t registration) {
  auto& registrations = tools[tool];
  if (registrations.size() <= registration) registrations.resize(registration + 1);
  return registrations[registration];
}

bool Record::is_empty() const {
  for (const auto& [tool, registrations] : tools) {
    for (const PerRegistration& registration : registrations) {
      if (!registration.actions.empty()) return false;
    }
  }
  return context.keys().empty() && (!context.face() || !context.face()->has_keys());
}

std::vector<ScheduledPtr> Record::scheduled(const std::vector<Tool*>& order, const ContextSession* running) const {
  std::vector<ScheduledPtr> found;
  auto add = [&](const std::vector<ScheduledPtr>& actions) {
    std::copy_if(actions.begin(), actions.end(), std::back_inserter(found),
                 [](const ScheduledPtr& action) { return !action->removed; });
  };
  for (const Tool* tool : order) {
    const auto known = tools.find(tool);
    const size_t registrations = known == tools.end() ? 0 : known->second.size();
    const bool runs = running && running->active.tool == tool;
    for (size_t i = 0; i < std::max(registrations, runs ? running->registration + 1 : 0); ++i) {
      if (runs && i == running->registration) {
        add(running->scheduled);
      } else if (i < registrations) {
        add(known->second[i].actions);
      }
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const ScheduledPtr& a, const ScheduledPtr& b) {
    return std::pair(a->phase, a->point) < std::pair(b->phase, b->point);
  });
  return found;
}

}  // namespace amanda
