// Runs the tools' analysis routines on an operator, once each, and merges the scheduled actions into a plan.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scope_stack.h"

namespace amanda {

/// Runs the remaining analyses of `point`, of the tools that see the operator, in their order.
///
/// The plan it returns holds all that is scheduled on the operator so far. A failed analysis schedules nothing and is
/// not remembered; its exception is rethrown, unless its scope has on_error="disable".
///
/// A session lasts as long as the operator's execution. Only the session holds the records of an operator without an
/// id.
class AnalysisSession {
 public:
  AnalysisSession(const ScopeStack& scopes, OpSite& site, const Visibility& seen);

  /// `running`: the call whose operands the analyses must not change in place. Null if the operands are symbols of a
  /// graph.
  PlanPtr run(Point point, const OpCall* running = nullptr);
  /// True if an analysis of `point` remains.
  bool pending(Point point) const;
  /// Makes the forward operator known to the tools' filters; run() does it, too.
  void note_filters() const;
  /// The actions that are scheduled so far.
  PlanPtr merge();

 private:
  struct Bound;
  struct Merged;  // what merge() has collected so far

  RecordPtr record_of(const ActiveTool& active);
  RecordPtr existing_record(ScopeState& scope) const;
  RecordPtr known_record(ScopeState& scope) const;  // of this session
  RecordKey key(OpId id) const { return {site_.backend().ids(), id}; }
  bool shows_symbols() const { return site_.backend().capabilities().symbolic_analysis; }
  void copy_keys(ScopeState& scope, OpContext& context) const;
  void copy_keys(ScopeState& owner, const RecordPtr& from, OpContext& context) const;
  bool is_active(const ActiveTool& active) const;
  bool asks(const ActiveTool& active, const Registration& registration) const;
  bool asks_for_type(const ActiveTool& active, const Registration& registration) const;
  bool is_demanded(const ActiveTool& active) const;
  const std::string& module_path() const;
  bool applies(const ActiveTool& active, const Registration& registration) const;
  bool takes_from_forward(const ScheduledAction& action) const;
  bool is_done(const ActiveTool& active, Record& record, size_t registration) const;
  void note_known(const ActiveTool& active) const;
  void analyse(const ActiveTool& active, Record& record, size_t registration, Point point, const OpCall* running);
  /// False if it failed, and the scope continues without the tool.
  bool call_analysis(Record& record, ContextSession& session, const OpCall* running) const;
  void store(Record& record, ContextSession& session) const;  // what the analysis scheduled

  void merge_tool(const ActiveTool& active, Merged& merged) const;
  /// The actions that an analysis scheduled here, on operators of this phase. `record`: null if there is none.
  void merge_own(const ActiveTool& active, size_t registration, Record* record, Merged& merged) const;
  /// Those that an analysis of the forward operator scheduled on its backward operators.
  void merge_from_forward(const ActiveTool& active, size_t registration, Record& forward, Merged& merged) const;

  const ScopeStack& scopes_;
  std::shared_ptr<const ScopeStack::Tables> tables_;  // as they are when run() is called
  OpSite& site_;
  const OpInfo& info_;  // of the forward operator
  const Visibility& seen_;
  std::vector<std::pair<ScopeState*, RecordPtr>> records_;  // of this operator, one a scope
  mutable std::optional<std::string> module_path_;          // found when first asked for
};

}  // namespace amanda
