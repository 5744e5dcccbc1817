// Instruments a graph: its operators are visited and analyzed, and the driver inserts taps.
#include <fmt/format.h>

#include <exception>
#include <unordered_set>

#include "amanda/base/thread_calls.h"
#include "amanda/driver/engine.h"
#include "amanda/error.h"
#include "amanda/log.h"
#include "analysis.h"
#include "executor.h"
#include "op_name.h"
#include "refusal.h"
#include "scope_stack.h"
#include "tap.h"
#include "toolset.h"

namespace amanda {
namespace {

class Visit final : public GraphVisitor {
 public:
  Visit(const OpenToolset& open, Backend& backend) : open_(open), backend_(backend) {}

  void show(OpSite& site) {
    const size_t index = count_++;
    if (error) return;
    try {
      if (PlanPtr plan = analyse(site)) {
        if (auto taps = taps_of(*plan, site); !taps.empty()) sites.push_back({index, std::move(taps)});
      }
    } catch (...) {
      error = std::current_exception();
      if (!error) throw;  // the thread is being ended
    }
  }

  std::vector<SitePlan> sites;
  std::vector<Artifact::Unseen> left_out;
  std::exception_ptr error;

 private:
  PlanPtr analyse(OpSite& site) {
    if (&site.backend() != &backend_) fail(site, "showed another driver's operator");
    check_order(site);
    const Visibility seen = open_.stack().visibility(backend_, site.forward_type(), open_.inside());
    if (seen.nobody()) return nullptr;
    check_sizes(site);
    CallFrame alive(ThreadCalls::current());
    AnalysisSession session(open_.stack(), site, seen);
    session.run(Point::kBefore);
    PlanPtr plan = session.run(Point::kAfter);  // the outputs are symbols too, so the operator need not run
    bool stopped = false;
    for (Point point : {Point::kBefore, Point::kReplace, Point::kAfter}) {
      for (const ScheduledPtr& action : plan->at(point)) stopped |= !accepts(site, *action);
    }
    return stopped ? session.run(Point::kAfter) : plan;  // without the tools that were stopped by a refusal
  }

  // Not all actions were scheduled just now: some in another regime, some by the forward operator's analysis.
  bool accepts(OpSite& site, const ScheduledAction& action) {
    if (action.status->stopped) return true;
    std::string reason = both_sides_refusal(site, action);
    if (reason.empty() && action.surely_edits()) reason = refusal(site, action);
    if (reason.empty()) return true;
    const std::string where = describe(action, site);
    const auto refused = std::make_exception_ptr(Error(fmt::format("[graph] {}: {}", where, reason)));
    if (!action.scope->survives(refused)) std::rethrow_exception(refused);
    action.scope->stop(site.backend(), *action.tool, where, refused);
    return false;
  }

  void check_order(OpSite& site) {
    if (site.id() == 0) fail(site, "showed an operator without an id");
    if (site.phase() == Phase::kBackward) {
      if (site.forward_id() == 0) fail(site, "showed a backward operator without its forward operator's id");
      if (!forward_.contains(site.forward_id())) early_.insert(site.forward_id());
    } else {
      if (early_.contains(site.id())) fail(site, "showed a backward operator before its forward operator");
      forward_.insert(site.id());
    }
  }

  void check_sizes(OpSite& site) const {
    constexpr size_t kMost = 1 << 24;  // more operands than any operator has
    for (Side side : {Side::kInputs, Side::kOutputs}) {
      if (site.size(side) > kMost || site.forward_size(side) > kMost)
        fail(site, "reported an impossible number of operands");
    }
  }

  [[noreturn]] void fail(OpSite& site, const char* what) const {
    throw Error(fmt::format("[graph] the driver '{}' {}: {}", backend_.name_space(), what, op_name(site)));
  }

  const OpenToolset& open_;
  Backend& backend_;
  size_t count_ = 0;
  std::unordered_set<OpId> forward_, early_;  // early: forward operators whose backward operators were shown first
};

}  // namespace

void GraphVisitor::op(OpSite& site) { static_cast<Visit*>(this)->show(site); }
void GraphVisitor::unseen(std::string what, std::string reason) {
  static_cast<Visit*>(this)->left_out.push_back({std::move(what), std::move(reason)});
}

ToolsetPtr Engine::toolset(const ScopeStack& scopes) { return scopes.toolset(ThreadCalls::current().inside); }

ArtifactPtr Engine::instrument(const Toolset& toolset, GraphSite& graph) {
  auto made = std::make_shared<Artifact>();
  const OpenToolset open(toolset);
  if (!open) return made;
  Visit visit(open, graph.backend());
  graph.each_op(visit);
  if (visit.error) std::rethrow_exception(visit.error);
  made->unseen = std::move(visit.left_out);
  if (visit.sites.empty()) return made;
  try {
    made->lowered = graph.lower(visit.sites);
    if (!made->lowered) throw Error("it gave no artifact for the taps it was given");
  } catch (const std::exception& error) {
    made->failure = fmt::format("the driver '{}' could not put taps into a graph, which runs without them: {}",
                                graph.backend().name_space(), error.what());
    log_warning("[graph] " + made->failure);
  }
  return made;
}

}  // namespace amanda
