#include "op_name.h"

#include <algorithm>
#include <exception>

namespace amanda {
namespace {

// Another error is being reported: an exception from the query for its place is ignored.
std::string asked(OpSite& site, Detail which) {
  try {
    return site.detail(which);
  } catch (const std::exception&) {
    return {};
  }
}

// One operand, or two, whose versions rose by a little.
std::vector<size_t> changed_positions(uint64_t difference, size_t count) {
  constexpr uint64_t kMostByOne = 256, kMostByTwo = 8;
  count = std::min<size_t>(count, 64);
  for (size_t i = 0; i < count; ++i) {
    for (uint64_t by = 1; by <= kMostByOne; ++by) {
      if (version_weight(i) * by == difference) return {i};
    }
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = i + 1; j < count; ++j) {
      for (uint64_t by_i = 1; by_i <= kMostByTwo; ++by_i) {
        for (uint64_t by_j = 1; by_j <= kMostByTwo; ++by_j) {
          if (version_weight(i) * by_i + version_weight(j) * by_j == difference) return {i, j};
        }
      }
    }
  }
  return {};
}

}  // namespace

std::string op_place(OpSite& site) {
  std::string text = op_name(site);
  if (const std::string module = asked(site, Detail::kModulePath); !module.empty()) text += " in " + module;
  if (const std::string source = asked(site, Detail::kSource); !source.empty())
    text += fmt::format(" ({}{})", site.phase() == Phase::kForward ? "forward, " : "backward of ", source);
  return text;
}

std::string operand_at(const OpSite& site, Side side, size_t position) {
  const OpInfo& info = site.backend().info(site.type());
  const std::vector<std::string>& names = side == Side::kOutputs ? info.outputs : info.inputs;
  const bool named = position < names.size() && !names[position].empty();
  return fmt::format("{} {}{}", operand_name(site.phase(), side), position, named ? " (" + names[position] + ")" : "");
}

std::string told_change(const OpSite& site, Side side, uint64_t difference) {
  std::string changed;
  for (size_t position : changed_positions(difference, site.size(side)))
    changed += (changed.empty() ? "" : " and ") + operand_at(site, side, position);
  if (changed.empty()) changed = "a tensor it was given";
  return fmt::format("it changed {} in place, and that stays changed", changed);
}

}  // namespace amanda
