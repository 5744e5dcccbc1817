// A tool: analysis routines, the operators they ask for, and the tools they build on.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "amanda/backend.h"
#include "amanda/filter.h"
#include "amanda/mutex.h"

namespace amanda {

class OpContext;
class Scope;
class ScopeState;

struct InstOptions {
  bool backward = false;         // a routine of backward operators
  bool require_outputs = false;  // run it when the outputs are there
  OpFilter ops{};
  bool nested = false;  // also inside an operator that this tool sees
  ModuleFilter modules{};
  /// No warning if `ops` and `modules` match nothing while some other routine of the tool has work.
  bool optional = false;
};

/// Looks at an operator once and decides. Analyses of one operator never run at the same time.
class Analysis {
 public:
  virtual ~Analysis() = default;
  virtual void operator()(OpContext& context) = 0;
  virtual bool is_failure(const std::exception_ptr&) const { return true; }  // as Routine's
};

struct Registration {
  std::shared_ptr<Analysis> analysis;
  InstOptions options;
};
using Registrations = std::shared_ptr<const std::vector<Registration>>;

/// Base of all tools. It must outlive the scopes it is given to.
class Tool {
 public:
  explicit Tool(std::string name = "tool", std::string name_space = {});
  virtual ~Tool() = default;
  Tool(const Tool&) = delete;
  Tool& operator=(const Tool&) = delete;

  const std::string& name() const { return name_; }
  const std::string& name_space() const { return name_space_; }

  void add_inst_for_op(std::function<void(OpContext&)> analysis, InstOptions options = {});
  void add_inst_for_op(std::shared_ptr<Analysis> analysis, InstOptions options = {});
  /// `tool`'s routines run before this one's, at analysis and at run time; it need not be applied by itself.
  void depends_on(Tool& tool);

  /// A scope that has this tool is entered, or left (`error`: by which exception; null: normally).
  virtual void on_enter(Scope&) {}
  virtual void on_exit(Scope&, const std::exception_ptr& /*error*/) {}
  /// A routine of this tool, or of one it depends on, failed under on_error="disable"; it runs no more in that scope.
  virtual void on_disable(const std::exception_ptr&) {}

  Registrations registrations() const;                  // a snapshot
  std::vector<Tool*> dependencies() const;              // a snapshot
  uint64_t version() const { return version_.load(); }  // of the registrations

 private:
  friend class ScopeState;
  std::string name_, name_space_;
  mutable Mutex mutex_;
  Registrations registrations_;
  std::vector<Tool*> dependencies_;
  std::atomic<uint64_t> version_{0};
  std::atomic<bool> applied_{false};  // some scope has seen it: a change must be told
  std::set<size_t> told_unmatched_;   // registrations whose filters were said to match nothing
};

}  // namespace amanda
