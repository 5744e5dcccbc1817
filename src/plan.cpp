#include "plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "amanda/error.h"
#include "op_name.h"
#include "resolver.h"

namespace amanda {
namespace {

// Tools are in resolver order, where dependents come after their dependencies, so comparing neighbors is enough.
void check_replacements(const std::vector<ScheduledPtr>& replacements, OpSite& site) {
  for (size_t i = 1; i < replacements.size(); ++i) {
    const ScheduledAction& inner = *replacements[i - 1];
    const ScheduledAction& outer = *replacements[i];
    if (inner.tool == outer.tool) {
      throw Error(fmt::format("[plan] '{}' replaces {} twice; remove() the first replacement", outer.tool->name(),
                              op_place(site)));
    }
    if (!depends(*outer.tool, *inner.tool)) {
      throw Error(
          fmt::format("[plan] '{0}' and '{1}' both replace {2}; let one depend on the other: {1}.depends_on({0})",
                      inner.tool->name(), outer.tool->name(), op_place(site)));
    }
  }
}

}  // namespace

Plan::Plan(std::vector<ScheduledPtr> actions, Outlook outlook, OpSite& site)
    : outlook_(std::move(outlook)), does_nothing_(actions.empty() && !outlook_.after_pending) {
  for (ScheduledPtr& action : actions) {
    shows_inputs_ |= action->point == Point::kAfter && action->shows_any();
    uses_run_ |= action->counter != nullptr;
    auto& list = actions_[static_cast<size_t>(action->point)];
    list.push_back(std::move(action));
  }
  check_replacements(replacements(), site);
  ends_before_ = replacements().empty() && at(Point::kAfter).empty() && !outlook_.after_pending;
}

Edit Plan::edits_after() const {
  Edit edit = outlook_.after_pending ? Edit::kUnknown : Edit::kNo;
  for (const ScheduledPtr& action : at(Point::kAfter)) edit = std::max(edit, action->edits());
  return edit;
}

}  // namespace amanda
