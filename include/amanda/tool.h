// A tool: analysis routines, the operators they ask for, and the tools they build on.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "amanda/backend.h"
#include "amanda/mutex.h"

namespace amanda {

class OpContext;
class Scope;
class ScopeState;

/// Which operator types a routine asks for.
///
/// A pattern is a name with shell globs: "conv2d" in any namespace, "aten::conv2d", "add.Tensor" for one overload.
class OpFilter {
 public:
  OpFilter() = default;  // every operator
  OpFilter(std::initializer_list<std::string> patterns) : OpFilter(std::vector<std::string>(patterns)) {}
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

struct InstOptions {
  bool backward = false;         // a routine of backward operators
  bool require_outputs = false;  // run it when the outputs are there
  OpFilter ops{};
  bool nested = false;  // also inside an operator that this tool sees
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
};

}  // namespace amanda
