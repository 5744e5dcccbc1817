#include "refusal.h"

#include <fmt/format.h>

namespace amanda {

std::string refusal(OpSite& site, const ActionInfo& action) {
  const Backend& backend = site.backend();
  if (action.point == Point::kReplace) return backend.refusal(site, action, 0);
  if (!action.all_positions) {
    for (size_t position : action.positions) {
      if (std::string reason = backend.refusal(site, action, position); !reason.empty()) return reason;
    }
    return {};
  }
  std::string first;
  for (size_t position = 0; position < site.size(side_of(action.point)); ++position) {
    std::string reason = backend.refusal(site, action, position);
    if (reason.empty()) return {};
    if (first.empty()) first = std::move(reason);
  }
  return first;
}

std::string both_sides_refusal(const OpSite& site, const ActionInfo& action) {
  const Backend& backend = site.backend();
  if (!action.shows_any() || backend.capabilities().both_sides) return {};
  const bool backward = action.phase == Phase::kBackward;
  return fmt::format(
      "'{}' shows a routine after the operator its {} alone; keep what you need of the {} in a routine "
      "before it, with run",
      backend.name_space(), backward ? "grad_inputs" : "outputs", backward ? "grad_outputs" : "inputs");
}

}  // namespace amanda
