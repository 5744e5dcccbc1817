// One execution of an operator that a tool sees, stage by stage.
#pragma once

#include <optional>

#include "action_cache.h"
#include "amanda/base/thread_calls.h"
#include "analysis.h"
#include "executor.h"

namespace amanda {

class OpRun : NoCopy {
 public:
  OpRun(ThreadCalls& thread, ScopeStack& scopes, OpCall& call, const Visibility& seen)
      : alive_(thread), thread_(thread), scopes_(scopes), call_(call), seen_(seen), execution_(call) {}
  /// The run of a forward operator that needs no analysis: of its visibility, only the set of tools is needed.
  OpRun(ThreadCalls& thread, ScopeStack& scopes, OpCall& call, ToolBits seeing, const PlanUse& plan)
      : alive_(thread),
        thread_(thread),
        scopes_(scopes),
        call_(call),
        seen_{.outer = seeing},
        plan_(plan),
        execution_(call) {}

  void before();  // analyses, and actions
  /// True if nothing is left but the operator, and it creates no backward operators. operate() and after() need not be
  /// called then.
  bool leaves_operator();
  void operate();  // the operator, or its replacement
  void after();
  void settle() { execution_.settle(); }

  const Plan& plan() const { return *plan_; }
  const Visibility& seen() const { return seen_; }

 private:
  PlanUse analyse(Point point);
  uint64_t gradient_mask();

  CallFrame alive_;
  ThreadCalls& thread_;
  ScopeStack& scopes_;
  OpCall& call_;
  const Visibility seen_;
  std::optional<AnalysisSession> session_;
  PlanUse plan_;
  Execution execution_;
  std::optional<uint64_t> gradient_mask_;  // once the actions before the operator have run
  bool watched_ = false;                   // backward operators may be created
  bool plain_ = false;                     // nothing was scheduled: finish() is not needed
};

}  // namespace amanda
