// Which operators an analysis routine asks for: by type, and by the module that runs them.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "amanda/backend.h"

namespace amanda {

/// Which operator types a routine asks for.
///
/// A pattern is a name with shell globs: "conv2d" in any namespace, "aten::conv2d", "add.Tensor" for one overload.
class OpFilter {
 public:
  OpFilter() = default;  // every operator
  OpFilter(std::initializer_list<std::string> patterns) : OpFilter(std::vector<std::string>(patterns)) {}
  /// Throws `std::invalid_argument` for an empty pattern.
  explicit OpFilter(std::vector<std::string> patterns);
  /// Whatever the tools that depend on this one ask for.
  static OpFilter on_demand();

  bool matches(const OpInfo& info) const;  // on_demand: false
  bool matches_all() const { return kind_ == Kind::kAll; }
  bool is_on_demand() const { return kind_ == Kind::kOnDemand; }
  const std::vector<std::string>& patterns() const;

 private:
  enum class Kind : uint8_t { kAll, kPatterns, kOnDemand };
  Kind kind_ = Kind::kAll;
  std::shared_ptr<const std::vector<std::string>> patterns_;  // shared: registrations are copied
};

/// In which modules a routine asks for operators.
///
/// A pattern is a module path with shell globs, whose `*` also matches dots: "encoder.*.attention". It stands for the
/// modules of that path and everything inside them.
class ModuleFilter {
 public:
  ModuleFilter() = default;  // in all modules, and outside of them
  ModuleFilter(std::initializer_list<std::string> patterns) : ModuleFilter(std::vector<std::string>(patterns)) {}
  /// Throws `std::invalid_argument` if there is no pattern, or one is no module path.
  explicit ModuleFilter(std::vector<std::string> patterns);

  bool matches(std::string_view module_path) const;
  bool matches_all() const { return !patterns_; }
  const std::vector<std::string>& patterns() const;

 private:
  std::shared_ptr<const std::vector<std::string>> patterns_;  // null: all
};

}  // namespace amanda
