// A tool: analysis routines, the operators that they ask for, and the tools that they build on.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "amanda/base/mutex.h"
#include "amanda/filter.h"
#include "amanda/op.h"

namespace amanda {

class OpContext;
class FilterUse;
class Scope;
class ScopeState;

/// Options of Tool::add_inst_for_op().
struct InstOptions {
  bool backward = false;         ///< a routine for backward operators
  bool require_outputs = false;  ///< run it after the operator, when the outputs exist
  OpFilter ops{};                ///< the operator types it is called for
  bool nested = false;           ///< also for operators inside an operator that this tool sees
  ModuleFilter modules{};        ///< the modules in which it is called
  bool optional = false;         ///< no warning of filters that match nothing, where the tool has other work
};

/// Looks at an operator once and schedules actions. Analyses of one operator never run at the same time.
class Analysis {
 public:
  virtual ~Analysis() = default;
  /// Runs on the thread that runs the operator. An exception reaches the program, unless the scope's `on_error`
  /// disables the tool instead.
  virtual void operator()(OpContext& context) = 0;
  /// The same as Routine::is_failure(), for the analysis.
  virtual bool is_failure(const std::exception_ptr&) const { return true; }
};

/// One analysis of a tool, with its options.
struct Registration {
  std::shared_ptr<Analysis> analysis;  ///< shared with the tool
  InstOptions options;                 ///< which operators it is called for, and when
};
/// An immutable list of registrations.
using Registrations = std::shared_ptr<const std::vector<Registration>>;

/// Base of all tools. It must outlive the scopes it is given to.
class Tool {
 public:
  /// `name` is for messages.
  explicit Tool(std::string name = "tool");
  virtual ~Tool() = default;
  Tool(const Tool&) = delete;
  Tool& operator=(const Tool&) = delete;

  /// The tool's name in messages.
  const std::string& name() const { return name_; }

  /// Registers an analysis routine. On any thread; open scopes use it from their next operator on. Throws
  /// `std::invalid_argument` if it is empty.
  void add_inst_for_op(std::function<void(OpContext&)> analysis, InstOptions options = {});
  /// The same, with an analysis that may keep state. Tool and scopes share it.
  void add_inst_for_op(std::shared_ptr<Analysis> analysis, InstOptions options = {});
  /// Restricts all analysis routines of this tool, also those registered later, to operators that these filters match,
  /// too. Tools it depends on are not restricted. Throws `amanda::Error` if a scope was made with this tool, and
  /// `std::invalid_argument` for OpFilter::on_demand().
  void narrow(const OpFilter& ops, const ModuleFilter& modules = {});
  /// `tool`'s routines run before this one's, at analysis and at run time. It need not be applied itself, and must
  /// outlive this tool. Scopes that exist already do not change.
  void depends_on(Tool& tool);

  /// Called on the thread that enters a scope with this tool, unless the tool is in a scope that is open there. An
  /// exception cancels the entry.
  virtual void on_enter(Scope&) {}
  /// Called on the thread that leaves the last of its open scopes with this tool. `error`: the exception that left the
  /// scope, or null if there was none.
  virtual void on_exit(Scope&, const std::exception_ptr& /*error*/) {}
  /// Called when a routine of this tool, or of one it depends on, threw under `on_error="disable"`. The tool does not
  /// run again in that scope. Called on the thread of the failure, with operators isolated as in an analysis.
  virtual void on_disable(const std::exception_ptr&) {}

  /// A snapshot of the registered analyses.
  Registrations registrations() const;
  /// A snapshot of the tools this one depends on.
  std::vector<Tool*> dependencies() const;
  /// Changes with each registration.
  uint64_t version() const { return version_.load(); }
  /// The number of operators of this phase that an analysis of the tool has looked at, in all scopes so far.
  size_t analysed(Phase phase) const;
  /// Counts them anew: those that were analysed before count again when they run next. Operators in a graph
  /// stay counted, because their next run shows nothing of them. Plans are merged again.
  void forget_analysed();

 private:
  friend class FilterUse;
  friend class ScopeState;
  friend class AnalysisSession;
  void note_analysed(Phase phase, OpId id, bool in_graph);
  bool has_analysed(Phase phase, OpId id) const;
  void restrict_locked(InstOptions& options) const;
  std::string name_;
  mutable Mutex mutex_;
  Registrations registrations_;
  std::vector<Tool*> dependencies_;
  OpFilter only_ops_;  // all routines are restricted to these operators
  ModuleFilter only_modules_;
  std::atomic<uint64_t> version_{0};
  std::atomic<bool> applied_{false};                        // some scope has seen it, and must be notified of changes
  std::set<size_t> told_unmatched_;                         // registrations whose filters were said to match nothing
  std::array<std::unordered_map<OpId, bool>, 2> analysed_;  // by phase: true if it is in a graph
};

}  // namespace amanda
