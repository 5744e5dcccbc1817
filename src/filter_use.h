// The use of filters: whether those of a scope's tools have matched anything so far.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "amanda/base/mutex.h"
#include "amanda/unmatched.h"

namespace amanda {

/// Which operators the filters have met, for the warning when they met none. On any thread.
class FilterUse {
 public:
  /// `tools`: of the scope, in their order. They outlive this object.
  explicit FilterUse(const std::vector<Tool*>& tools) : tools_(tools) {}

  /// A routine's filter met an operator of its types, in a module that it asks for or not.
  void note(const Tool* tool, size_t registration, bool in_modules, const std::string& module_path);
  /// True if a routine's filters have matched nothing so far.
  bool has_unmatched();
  /// The routines of `tool` whose filters have matched nothing so far, each once for the life of the tool.
  std::vector<Unmatched> take_unmatched(Tool& tool);

 private:
  struct Met {
    bool matched = false;
    std::set<std::string> elsewhere;  // paths of modules that it does not ask for, unless it matched
  };

  /// True if the routine has no filter, or its filter has matched something that ran. Call this under the lock.
  bool has_matched(const Tool& tool, size_t registration, const InstOptions& options) const;
  bool has_work(const Tool& tool);  // true if a routine of it matched, other than those on demand
  /// True if there is other work in its place: of its own, of a tool that it depends on, or of one that depends on it.
  bool may_be_idle(const Tool& tool);
  std::vector<Unmatched> unmatched(Tool& tool);

  const std::vector<Tool*>& tools_;
  Mutex mutex_;
  std::map<std::pair<const Tool*, size_t>, Met> met_;  // by routines whose types of operators were met
};

}  // namespace amanda
