// The seam, graph part: a program that is built first and run later, many times, in whatever form the framework gives
// it. The steps from the program to a routine:
//
// 1. A graph is about to be built or run. The driver's front calls Engine::toolset(scopes): the tools, as a key.
// 2. The artifact is looked up in an ArtifactCache, or in a cache of the framework with the toolset in its key.
// 3. If there is no artifact, Engine::instrument() makes it: GraphSite::each_op() shows the operators; analyses run;
//    GraphSite::lower() puts taps where actions are, next to the original.
// 4. The artifact runs. Each tap calls Engine::run(tap, call), on whatever thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "amanda/driver/backend.h"
#include "amanda/run_state.h"

namespace amanda {

/// The tools in force at one place of the program: these scope objects, in this order, as they are now, without the
/// tools that are inside one of their own operators.
///
/// Engine::toolset() returns the same object again while it is held. It returns another one for another scope object,
/// after a tool was changed or stopped, after cache_clear(), after the removal of a traceable action, and on each call
/// under cache_disabled(). The removal of other actions makes no new toolset: taps check for it when they run. Under
/// disabled() no one calls Engine::toolset(). A driver that stores a toolset for later runs, instead of
/// asking at each run, checks it in each switch_to().
///
/// Immutable; any thread. It keeps neither tools nor scopes alive, and may be released without an interpreter's lock.
class Toolset {
 public:
  uint64_t key() const { return key_; }  ///< never used again in this process
  /// True if this toolset will not be returned again: objects that are cached under it may be released.
  bool is_over() const noexcept;

 protected:
  /// @cond
  Toolset() = default;
  ~Toolset() = default;

  uint64_t key_ = 0;
  /// @endcond
};
/// A shared toolset.
using ToolsetPtr = std::shared_ptr<const Toolset>;

/// Consecutive actions of one operator that can be one node of the graph.
///
/// Immutable; any thread. It keeps neither tools nor scopes alive: a framework's graph that holds it never keeps a
/// program's objects from being collected. While it runs, its scopes live.
class Tap {
 public:
  /// The tap's id, which is never used again. For nodes that can hold only a number: see Engine::tap().
  uint64_t id() const { return id_; }
  /// Whether the tap's operator is a forward or a backward operator.
  Phase phase() const { return phase_; }
  /// The point at which its routines run.
  Point point() const { return point_; }
  /// `kObserve`: no value will be replaced, so nothing has to wait for the tap or take its results. `kTransform`: some
  /// will be. `kUnknown`: some may be; where the driver refuses edits, it inserts the tap to read only. `kTraceable`:
  /// Engine::run() may be called in lower(), once, with a call whose operands are the graph's own symbols. The
  /// operations of the routines on them become part of the graph. A driver that cannot do that treats the tap as
  /// `kTransform`.
  RoutineKind kind() const { return kind_; }
  /// True if the tap gets this operand (of its own side). For other operands, `get` may return null. A replacement gets
  /// all operands: it may run the original.
  bool selects(size_t position) const;
  /// After the operator: true if this input (of a backward operator: this incoming gradient) is shown to it, too. For
  /// other inputs, `get` may return null. Only with Capabilities::both_sides.
  bool shows_input(size_t position) const;
  /// True if gradients flow through its routines. If not, gradients pass the tap unchanged.
  bool differentiable() const { return differentiable_; }
  /// True if its routines share values with other routines of the same execution. If not, Engine::run() needs no
  /// RunState.
  bool shares_run() const { return shares_run_; }

 protected:
  /// @cond
  Tap(uint64_t id, Phase phase, const ActionInfo& like) : id_(id), phase_(phase), point_(like.point) {}
  ~Tap() = default;

  const uint64_t id_;
  const Phase phase_;
  const Point point_;
  RoutineKind kind_ = RoutineKind::kUnknown;
  bool differentiable_ = false, shares_run_ = false, all_ = false, shows_all_ = false;
  std::vector<size_t> positions_, shows_;  // unless all
  /// @endcond
};
/// A shared tap.
using TapPtr = std::shared_ptr<const Tap>;

/// One operator's taps in the order they run: those before it, at most one in its place, those after it.
struct SitePlan {
  size_t index;              ///< of the operator: the number of operators that each_op() showed before it
  std::vector<TapPtr> taps;  ///< before the operator, at most one in its place, after it
};

/// Receives a graph's operators. Passed to each_op(), and valid during that call, on its thread.
class GraphVisitor {
 public:
  /// Shows an operator, as a site on the driver's stack. Analyses run now; actions do not. If an analysis fails, this
  /// does not throw, so that the exception need not pass through the driver: the rest of the visit does nothing, and
  /// Engine::instrument() throws it.
  void op(OpSite& site);
  /// Reports something that runs but is not shown to tools, and the reason, for coverage reports: "positive", "inside
  /// XLA".
  void unseen(std::string what, std::string reason);

 protected:
  GraphVisitor() = default;
  ~GraphVisitor() = default;
};

/// A graph, as the core sees it while it is instrumented; as OpCall is for an execution. Lives on the driver's stack.
///
/// Called by Engine::instrument() only, on its thread, while the core holds no lock.
class GraphSite {
 public:
  /// The driver.
  virtual Backend& backend() const = 0;
  /// Shows each operator once: operands before users (except for a loop's back edges), a forward operator before its
  /// backward ones. The id must not be 0. Several nodes may have one id, if they are one place of the program.
  ///
  /// Bodies of loops, conditionals and calls belong to the graph, unless the framework builds them as separate graphs
  /// and instruments those. Nodes that only connect, such as the loop itself or a sum of gradients, are not operators,
  /// as in eager mode. Backward operators are shown where the graph has them. If the framework differentiates what
  /// lower() returns, show the backward operators that it will create right after their forward operator. A backward
  /// operator's forward operator may also be in another graph that was instrumented before, under the same toolset.
  virtual void each_op(GraphVisitor& visitor) = 0;
  /// Makes the artifact: a graph of its own, or nodes next to the original that do not affect its uninstrumented runs.
  /// (A graph that is being built under this toolset alone may be changed in place, by steps that cannot fail
  /// half-way.)
  ///
  /// `sites`: the operators that have taps, as shown; not called if there are none. The result must hold its taps; it
  /// is released on any thread, without an interpreter's lock. If this throws, the graph runs uninstrumented, with one
  /// warning: throw `Error` with a reason only. Anything that is not a `std::exception`, such as a binding's interrupt,
  /// reaches the caller of Engine::instrument() unchanged.
  ///
  /// A tap in an operator's place must be able to run the original: for call_original(), and when its tools are gone.
  /// If a node cannot do that, let it take the results of the original, which is computed in addition, and return
  /// those.
  ///
  /// The operands of backward operators are the same in every regime:
  ///   - an input that their forward operator saved is the value after the taps before it;
  ///   - a result that it saved is its own, or its replacement's, without the edits of taps after it;
  ///   - gradients pass taps unchanged, unless a tap is differentiable.
  ///
  /// A replacement's gradient is its own if the framework differentiates afterwards, or traces it. Otherwise the
  /// backward operators of the replaced operator stay, and get its results.
  virtual std::shared_ptr<void> lower(const std::vector<SitePlan>& sites) = 0;

 protected:
  ~GraphSite() = default;
};

/// The result of instrumenting a graph under a toolset. Immutable; any thread.
struct Artifact {
  std::shared_ptr<void> lowered;  ///< by GraphSite::lower(); null if the original is to run
  /// Something that runs but is not shown to tools.
  struct Unseen {
    std::string what;    ///< what runs
    std::string reason;  ///< why it is not shown to tools
  };
  std::vector<Unseen> unseen;  ///< the reports of GraphVisitor::unseen()
  std::string failure;         ///< why it could not be lowered; "" if it could, or nothing was scheduled
};
/// A shared artifact.
using ArtifactPtr = std::shared_ptr<const Artifact>;

/// A graph's artifacts, for a framework without a cache whose key could include a toolset. The driver keeps one with
/// each graph: artifacts are released with it, or when their toolset is over. Any thread.
class ArtifactCache {
 public:
  /// An empty cache.
  ArtifactCache();
  ~ArtifactCache();

  /// The artifact for the part of the graph that is to run (`signature`: its fetches and feeds, say). One thread builds
  /// it, by Engine::instrument(), while others wait, between the wait hooks of wait_hooks.h. An exception from it is
  /// not remembered; a failure to lower is.
  ArtifactPtr get(const ToolsetPtr& toolset, const std::string& signature, GraphSite& graph);
  /// Forgets all that are built: the graph itself has changed.
  void clear();

  /// Counters of a cache.
  struct Info {
    uint64_t hits = 0;    ///< calls of get() that built nothing
    uint64_t builds = 0;  ///< artifacts built
    size_t size = 0;      ///< artifacts kept
  };
  /// Counters of this cache.
  Info info() const;

 private:
  struct Table;
  const std::unique_ptr<Table> table_;
};

}  // namespace amanda
