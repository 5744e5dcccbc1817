#include "dispatch/registered_operators.h"

#include <algorithm>
#include <mutex>
#include <string_view>

#include "amanda/filter.h"

namespace amanda::pytorch {
namespace {

constexpr std::string_view kWildcards = "*?[\\";

std::string_view without_namespace(std::string_view name) {
  const size_t colons = name.find("::");
  return colons == std::string_view::npos ? name : name.substr(colons + 2);
}

// The beginning of each name that the pattern matches, and whether it is the whole name.
struct Beginning {
  explicit Beginning(std::string_view pattern) {
    if (pattern.substr(0, pattern.find("::")).find_first_of(kWildcards) != std::string_view::npos &&
        pattern.find("::") != std::string_view::npos)
      return;
    const std::string_view name = without_namespace(pattern);
    text = name.substr(0, name.find('.'));
    if (const size_t wildcard = text.find_first_of(kWildcards); wildcard != std::string_view::npos) {
      text = text.substr(0, wildcard);
    } else {
      is_whole = true;
    }
  }

  std::string_view text;
  bool is_whole = false;
};

OpInfo info_of(const c10::OperatorName& name) {
  OpInfo info;
  const std::string_view qualified = name.name;
  info.name = without_namespace(qualified);
  if (info.name.size() < qualified.size()) info.ns = qualified.substr(0, qualified.size() - info.name.size() - 2);
  info.overload = name.overload_name;
  return info;
}

}  // namespace

void RegisteredOperators::add(const c10::OperatorName& name) {
  std::lock_guard lock(mutex_);
  by_name_[std::string(without_namespace(name.name))].push_back(name);
  settled_.clear();
  ++additions_;
}

void RegisteredOperators::remove(const c10::OperatorName& name) {
  std::lock_guard lock(mutex_);
  const auto found = by_name_.find(std::string(without_namespace(name.name)));
  if (found == by_name_.end()) return;
  std::erase(found->second, name);
  if (found->second.empty()) by_name_.erase(found);
}

std::vector<c10::OperatorName> RegisteredOperators::matching(const std::string& pattern) {
  std::vector<c10::OperatorName> matching;
  const OpFilter filter({pattern});
  auto add_matching = [&](const std::vector<c10::OperatorName>& names) {
    std::copy_if(names.begin(), names.end(), std::back_inserter(matching),
                 [&](const c10::OperatorName& name) { return filter.matches(info_of(name)); });
  };
  const Beginning beginning(pattern);
  std::lock_guard lock(mutex_);
  if (beginning.is_whole) {
    const auto found = by_name_.find(std::string(beginning.text));
    if (found != by_name_.end()) add_matching(found->second);
    return matching;
  }
  for (const auto& [name, names] : by_name_) {
    if (name.starts_with(beginning.text)) add_matching(names);
  }
  return matching;
}

uint64_t RegisteredOperators::drop_settled(std::vector<std::string>& patterns) {
  std::lock_guard lock(mutex_);
  std::erase_if(patterns, [&](const std::string& pattern) { return settled_.contains(pattern); });
  return additions_;
}

void RegisteredOperators::settle(const std::vector<std::string>& patterns, uint64_t additions) {
  std::lock_guard lock(mutex_);
  if (additions_ == additions) settled_.insert(patterns.begin(), patterns.end());
}

RegisteredOperators& registered_operators() {
  static auto* all = new RegisteredOperators;  // threads may outlive static objects
  return *all;
}

}  // namespace amanda::pytorch
