#include "amanda/filter.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <stdexcept>
#include <utility>

namespace amanda {
namespace {

bool glob(const std::string& pattern, const std::string& text) {
  return fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
}

const std::vector<std::string>& patterns_or_none(const std::shared_ptr<const std::vector<std::string>>& patterns) {
  static const std::vector<std::string> none;
  return patterns ? *patterns : none;
}

/// A filter that matches what `filter`, if there is one, and `other` both match.
template <class Filter>
std::shared_ptr<const Filter> both(const std::shared_ptr<const Filter>& filter, const Filter& other) {
  return std::make_shared<const Filter>(filter ? filter->narrowed(other) : other);
}

/// The reason why the pattern is no module path. Empty if it is one.
std::string complaint(const std::string& pattern) {
  if (pattern.empty()) return "it is empty";
  if (pattern.front() == '.' || pattern.back() == '.' || pattern.find("..") != std::string::npos)
    return "there is no name before or after a dot";
  if (pattern.find_first_of("/ :,") != std::string::npos) return "a path is names joined by dots";
  const size_t bracket = pattern.find_last_of("[]");
  if (bracket != std::string::npos && pattern[bracket] == '[') return "a '[' is not closed";
  return "";
}

}  // namespace

OpFilter::OpFilter(std::vector<std::string> patterns)
    : kind_(Kind::kPatterns), patterns_(std::make_shared<const std::vector<std::string>>(std::move(patterns))) {
  for (const std::string& pattern : *patterns_) {
    if (pattern.empty())
      throw std::invalid_argument("[tool] an operator pattern is empty; give a name such as \"conv2d\"");
  }
}

const std::vector<std::string>& OpFilter::patterns() const { return patterns_or_none(patterns_); }

OpFilter OpFilter::on_demand() {
  OpFilter filter;
  filter.kind_ = Kind::kOnDemand;
  return filter;
}

OpFilter OpFilter::narrowed(const OpFilter& other) const {
  if (kind_ == Kind::kAll) return other;
  if (kind_ == Kind::kOnDemand || other.matches_all()) return *this;
  OpFilter filter = *this;
  filter.within_ = both(within_, other);
  return filter;
}

bool OpFilter::matches(const OpInfo& info) const {
  if (within_ && !within_->matches(info)) return false;
  if (kind_ != Kind::kPatterns) return kind_ == Kind::kAll;
  for (const std::string& pattern : *patterns_) {
    const bool qualified = pattern.find("::") != std::string::npos;
    const bool overload = pattern.find('.', qualified ? pattern.find("::") : 0) != std::string::npos;
    std::string text = qualified ? info.ns + "::" + info.name : info.name;
    if (overload) text += "." + info.overload;
    if (glob(pattern, text)) return true;
  }
  return false;
}

ModuleFilter::ModuleFilter(std::vector<std::string> patterns)
    : patterns_(std::make_shared<const std::vector<std::string>>(std::move(patterns))) {
  if (patterns_->empty()) {
    throw std::invalid_argument(
        "[tool] modules= has no pattern, and would match nothing; leave it out to ask in all modules");
  }
  for (const std::string& pattern : *patterns_) {
    if (const std::string wrong = complaint(pattern); !wrong.empty()) {
      throw std::invalid_argument(
          fmt::format("[tool] modules=\"{}\" is no module path: {}; give one such as \"encoder.layer.0\", or "
                      "\"encoder.*.attention\" with shell globs",
                      pattern, wrong));
    }
  }
}

ModuleFilter ModuleFilter::narrowed(const ModuleFilter& other) const {
  if (matches_all()) return other;
  if (other.matches_all()) return *this;
  ModuleFilter filter = *this;
  filter.within_ = both(within_, other);
  return filter;
}

bool ModuleFilter::matches(std::string_view module_path) const {
  if (within_ && !within_->matches(module_path)) return false;
  if (!patterns_) return true;
  for (size_t end = 0; end != std::string_view::npos;) {
    end = module_path.find('.', end + 1);
    const std::string module(module_path.substr(0, end));  // the path itself, or of a module around it
    for (const std::string& pattern : *patterns_) {
      if (glob(pattern, module)) return true;
    }
  }
  return false;
}

const std::vector<std::string>& ModuleFilter::patterns() const { return patterns_or_none(patterns_); }

}  // namespace amanda
