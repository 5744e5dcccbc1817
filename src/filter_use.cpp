#include "filter_use.h"

#include <algorithm>
#include <mutex>

#include "resolver.h"

namespace amanda {

void FilterUse::note(const Tool* tool, size_t registration, bool in_modules, const std::string& module_path) {
  constexpr size_t kMostPaths = 256;
  std::lock_guard lock(mutex_);
  Met& met = met_[{tool, registration}];
  met.matched |= in_modules;
  if (met.matched) {
    met.elsewhere.clear();
  } else if (met.elsewhere.size() < kMostPaths) {
    met.elsewhere.insert(module_path);
  }
}

bool FilterUse::has_matched(const Tool& tool, size_t registration, const InstOptions& options) const {
  if (options.ops.patterns().empty() && options.modules.matches_all()) return true;
  const auto met = met_.find({&tool, registration});
  return met != met_.end() && met->second.matched;
}

bool FilterUse::has_work(const Tool& tool) {
  const Registrations registrations = tool.registrations();
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < registrations->size(); ++i) {
    const InstOptions& options = (*registrations)[i].options;
    if (options.ops.is_on_demand() || (options.optional && options.ops.matches_all()))
      continue;  // finds nothing itself
    if (has_matched(tool, i, options)) return true;
  }
  return false;
}

bool FilterUse::may_be_idle(const Tool& tool) {
  return std::any_of(tools_.begin(), tools_.end(), [&](const Tool* other) {
    return depends(*other, tool) || ((other == &tool || depends(tool, *other)) && has_work(*other));
  });
}

std::vector<Unmatched> FilterUse::unmatched(Tool& tool) {
  std::vector<Unmatched> found;
  {
    const Registrations registrations = tool.registrations();
    std::lock_guard lock(mutex_);
    std::lock_guard tool_lock(tool.mutex_);
    for (size_t i = 0; i < registrations->size(); ++i) {
      const InstOptions& options = (*registrations)[i].options;
      if (has_matched(tool, i, options) || tool.told_unmatched_.contains(i)) continue;
      Unmatched& one = found.emplace_back(Unmatched{&tool, i, options});
      const auto met = met_.find({&tool, i});
      if (met == met_.end()) continue;
      one.ops_matched = true;
      one.elsewhere.assign(met->second.elsewhere.begin(), met->second.elsewhere.end());
    }
  }
  const auto is_optional = [](const Unmatched& one) { return one.options.optional; };
  if (std::any_of(found.begin(), found.end(), is_optional) && may_be_idle(tool)) std::erase_if(found, is_optional);
  return found;
}

bool FilterUse::has_unmatched() {
  return std::any_of(tools_.begin(), tools_.end(), [&](Tool* tool) { return !unmatched(*tool).empty(); });
}

std::vector<Unmatched> FilterUse::take_unmatched(Tool& tool) {
  std::vector<Unmatched> found = unmatched(tool);
  std::lock_guard lock(tool.mutex_);
  std::erase_if(found, [&](const Unmatched& one) { return !tool.told_unmatched_.insert(one.registration).second; });
  return found;
}

}  // namespace amanda
