// The seam, graph half: a program that is built first and run later, often, in whatever form the framework gives it.
// Who calls whom, from the program to a routine:
//
//   a graph is about to be built or run     the driver asks Engine::toolset(scopes): which tools, as a key
//   is there an artifact for it?            ArtifactCache, or the framework's own cache with the toolset in its key
//   if not, Engine::instrument(...)         GraphSite::each_op() shows the operators; analyses run; GraphSite::lower()
//                                           puts taps where actions are, beside the original
//   the artifact runs                       each tap calls Engine::run(tap, call), on any thread
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "amanda/backend.h"

namespace amanda {

/// The tools in force at one place of the program: these scope objects, in this order, as they are now, without the
/// tools that are inside one of their own operators.
///
/// It is the same object as long as somebody holds it and nothing changes. Another one is created by another scope
/// object, a tool that changed or stopped, cache_clear(), the removal of a traceable action, and by each call under
/// cache_disabled(). The removal of other actions does not change it: taps check for that when they run. A driver that
/// stores it for later runs must look again in each switch_to().
///
/// Immutable; any thread. It keeps neither tools nor scopes alive, and is released without an interpreter's lock.
class Toolset {
 public:
  uint64_t key() const { return key_; }  // never used again in this process
  /// It will not be returned again: what is cached under it can be dropped.
  bool is_over() const noexcept;

 protected:
  Toolset() = default;
  ~Toolset() = default;

  uint64_t key_ = 0;
};
using ToolsetPtr = std::shared_ptr<const Toolset>;

/// Neighbouring actions of one operator that can be one node of the graph.
///
/// Immutable; any thread. It keeps neither tools nor scopes alive, so a framework's graph that holds it never keeps a
/// program's objects from being collected. While it runs, its scopes are kept alive.
class Tap {
 public:
  uint64_t id() const { return id_; }  // never used again; for nodes that can hold only a number: Engine::tap()
  Phase phase() const { return phase_; }
  Point point() const { return point_; }
  /// kObserve: no value is replaced, so nothing needs to wait for the tap or to take its results. kTransform: some are.
  /// kUnknown: some may be; where the driver refuses edits, it still inserts the tap to look. kTraceable: the driver
  /// may call Engine::run() once in lower(), with a call whose operands are the graph's own symbols; what the routines
  /// do with them becomes part of the graph. A driver that cannot do that treats it as kTransform.
  RoutineKind kind() const { return kind_; }
  /// Does it use this operand of its side? For others, `get` may return null. A replacement uses all of them, because
  /// it may run the original.
  bool selects(size_t position) const;
  bool differentiable() const { return differentiable_; }  // false: gradients pass straight through it

 protected:
  Tap(uint64_t id, Phase phase, const ActionInfo& like) : id_(id), phase_(phase), point_(like.point) {}
  ~Tap() = default;

  const uint64_t id_;
  const Phase phase_;
  const Point point_;
  RoutineKind kind_ = RoutineKind::kUnknown;
  bool differentiable_ = false, all_ = false;
  std::vector<size_t> positions_;  // unless all
};
using TapPtr = std::shared_ptr<const Tap>;

/// One operator's taps in the order they run: those before it, at most one that replaces it, those after it.
struct SitePlan {
  size_t index;  // of the operator, in the order each_op() showed them
  std::vector<TapPtr> taps;
};

/// What a driver shows a graph to. Valid during each_op(), on its thread.
class GraphVisitor {
 public:
  /// Shows an operator, as a site on the driver's stack. Analyses run now; actions do not. A failing analysis does not
  /// throw here, so that its exception does not pass through the driver: the rest of the visit does nothing, and
  /// Engine::instrument() throws it.
  void op(OpSite& site);
  /// Reports something that runs but is not shown to tools, and why, for coverage reports: "positive", "inside XLA".
  void unseen(std::string what, std::string reason);

 protected:
  GraphVisitor() = default;
  ~GraphVisitor() = default;
};

/// A graph, as the core sees it while it is instrumented; what OpCall is to an execution. Lives on the driver's stack.
///
/// Called by Engine::instrument() only, on its thread. The core holds no lock meanwhile.
class GraphSite {
 public:
  virtual Backend& backend() const = 0;
  /// Shows each operator once: operands before their users (except a loop's back edges), a forward operator before its
  /// backward operators. Ids must not be 0. Several nodes may share an id if they are one place of the program.
  ///
  /// Bodies of loops, conditionals and calls belong to the graph, unless the framework builds and instruments them as
  /// graphs of their own. Nodes that only connect others (the loop itself, a sum of gradients) are not operators, as in
  /// eager mode. Backward operators are shown where the graph has them; if the framework differentiates what lower()
  /// returns, they are shown as it will create them, right after their forward operator. The forward operator may also
  /// be in another graph that was instrumented before under the same toolset.
  virtual void each_op(GraphVisitor& visitor) = 0;
  /// Builds the artifact: a graph of its own, or nodes beside the original that runs without tools cannot notice. (A
  /// graph that is being built under this toolset only may be changed in place, by steps that cannot fail half-way.)
  /// `sites`: the operators that have taps, in the order shown; not called if there are none. The result must hold its
  /// taps; it is released on any thread, without an interpreter's lock.
  /// On failure the graph runs without tools, with one warning: throw `Error` with a reason only. An exception that is
  /// no std::exception, such as an interrupt in a binding, propagates as itself.
  ///
  /// A tap that replaces an operator must be able to run the original: call_original() does so, and so does a tap whose
  /// tools are gone. If a node cannot, compute the original beside it and pass its results in.
  ///
  /// What backward operators receive is the same in every mode:
  ///   - an input that the forward operator saved is what came out of the taps before it;
  ///   - an output that it saved is its own, or its replacement's, not what taps after it made of it;
  ///   - gradients pass straight through taps, except differentiable ones.
  /// The gradient of a replacement is its own if the framework differentiates afterwards or traces it. Otherwise the
  /// backward operators of the replaced operator stay, and receive the replacement's results.
  virtual std::shared_ptr<void> lower(const std::vector<SitePlan>& sites) = 0;

 protected:
  ~GraphSite() = default;
};

/// A graph instrumented under a toolset. Immutable; any thread.
struct Artifact {
  std::shared_ptr<void> lowered;  // by GraphSite::lower(); null: run the original
  struct Unseen {
    std::string what, reason;
  };
  std::vector<Unseen> unseen;
  std::string failure;  // why it could not be lowered; "": it could, or no tool wanted anything
};
using ArtifactPtr = std::shared_ptr<const Artifact>;

/// The artifacts of one graph, for frameworks without a cache that can have a toolset in its key. The driver keeps one
/// with each graph: the artifacts go when the graph goes, or when the toolset is over. Any thread.
class ArtifactCache {
 public:
  ArtifactCache();
  ~ArtifactCache();

  /// The artifact for the part of the graph that runs (`signature`: its fetches and feeds, for example). One thread
  /// builds it, by Engine::instrument(), while others wait between the hooks of wait_hooks.h. What that throws is not
  /// remembered; a failure to lower is.
  /// Throws `Error` if the thread that builds it asks for it.
  ArtifactPtr get(const ToolsetPtr& toolset, const std::string& signature, GraphSite& graph);
  /// Drops all that are built: the graph itself has changed.
  void clear();

  struct Info {
    uint64_t hits = 0, builds = 0;
    size_t size = 0;
  };
  Info info() const;

 private:
  struct Table;
  const std::unique_ptr<Table> table_;
};

/// What routines share in one execution of an operator and of its backward operators (Values::run()). A driver that can
/// tell executions apart keeps one for each; its taps must not run at the same time.
class RunState {
 public:
  RunState();
  ~RunState();

 private:
  friend class Execution;
  struct Slots;
  std::unique_ptr<Slots> slots_;  // created at first use
};

}  // namespace amanda
