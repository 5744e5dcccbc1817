// Filters for the operators of an analysis routine: by type, and by the module that runs them.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "amanda/op.h"

namespace amanda {

/// The operator types that a routine asks for.
///
/// A pattern is a name with shell wildcards: "conv2d" in any namespace, "aten::conv2d", "add.Tensor" for one overload.
class OpFilter {
 public:
  /// Every operator.
  OpFilter() = default;
  /// The operators that match one of the patterns.
  OpFilter(std::initializer_list<std::string> patterns) : OpFilter(std::vector<std::string>(patterns)) {}
  /// The operators that match one of the patterns. Throws `std::invalid_argument` if one is empty.
  explicit OpFilter(std::vector<std::string> patterns);
  /// The operators that the tools which depend on this one ask for.
  static OpFilter on_demand();

  /// A filter that matches what this filter and `other` both match. A filter made by on_demand() stays as it is: the
  /// filters of the tools that depend on its tool decide.
  OpFilter narrowed(const OpFilter& other) const;
  /// True if the filter matches this type. Always false for on_demand().
  bool matches(const OpInfo& info) const;
  /// True if the filter matches every type.
  bool matches_all() const { return kind_ == Kind::kAll; }
  /// True if the filter was made by on_demand().
  bool is_on_demand() const { return kind_ == Kind::kOnDemand; }
  /// The patterns; empty if there are none. A narrowed filter may match less than they do.
  const std::vector<std::string>& patterns() const;

 private:
  enum class Kind : uint8_t { kAll, kPatterns, kOnDemand };
  Kind kind_ = Kind::kAll;
  std::shared_ptr<const std::vector<std::string>> patterns_;  // shared: registrations are copied
  std::shared_ptr<const OpFilter> within_;  // another filter that must match, too; null if there is none
};

/// The modules in which a routine asks for operators.
///
/// A pattern is a module path with shell wildcards, whose `*` also matches dots: "encoder.*.attention". It stands for
/// the modules of that path and everything inside them.
class ModuleFilter {
 public:
  /// All modules, and operators outside modules.
  ModuleFilter() = default;
  /// The modules that match one of the patterns.
  ModuleFilter(std::initializer_list<std::string> patterns) : ModuleFilter(std::vector<std::string>(patterns)) {}
  /// The modules that match one of the patterns. Throws `std::invalid_argument` if there is none, or one is not a path.
  explicit ModuleFilter(std::vector<std::string> patterns);

  /// A filter that matches what this filter and `other` both match.
  ModuleFilter narrowed(const ModuleFilter& other) const;
  /// True if this is the path of a module that matches, or of one inside it. "" is the path outside modules.
  bool matches(std::string_view module_path) const;
  /// True if the filter matches everywhere.
  bool matches_all() const { return !patterns_; }
  /// The patterns; empty if it matches everywhere. A narrowed filter may match less than they do.
  const std::vector<std::string>& patterns() const;

 private:
  std::shared_ptr<const std::vector<std::string>> patterns_;  // null if it matches all
  std::shared_ptr<const ModuleFilter> within_;  // another filter that must match, too; null if there is none
};

}  // namespace amanda
