// The seam, graph half: a program that is written down first, and run later, often, by whatever the framework made of
// it. Who calls whom, from the program to a routine:
//
//   a graph is about to be built or run     the driver's front asks Engine::toolset(scopes): which tools, as a key
//   is there an artifact for it?            ArtifactCache, or a cache of the framework's with the toolset in its key
//   if not, Engine::instrument(...)         GraphSite::each_op() shows the operators; analyses run; GraphSite::lower()
//                                           puts taps where actions are, beside the original
//   the artifact runs                       each tap calls Engine::run(tap, call), on whatever thread
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "amanda/backend.h"
#include "amanda/run_state.h"

namespace amanda {

/// The tools in force at one place of the program: these scope objects, in this order, as they are now, without the
/// tools that are inside one of their own operators.
///
/// Asked for again, it is the same object as long as somebody holds it. Another is made by another scope object, a tool
/// that was changed or stopped, cache_clear(), a traceable action that was removed; under cache_disabled(), each call.
/// What does not: the removal of other actions, which taps see when they run; disabled(), under which nobody asks. A
/// driver that puts it somewhere for later runs, rather than to ask at each, looks again in each switch_to().
///
/// Immutable; any thread. It keeps neither tools nor scopes alive, and may be let go of without an interpreter's lock.
class Toolset {
 public:
  uint64_t key() const { return key_; }  // never used again in this process
  /// It will not be given again: what is cached under it may go.
  bool is_over() const noexcept;

 protected:
  Toolset() = default;
  ~Toolset() = default;

  uint64_t key_ = 0;
};
using ToolsetPtr = std::shared_ptr<const Toolset>;

/// Actions of one operator that follow one another and can be one node of the graph.
///
/// Immutable; any thread. It keeps neither tools nor scopes alive: a framework's graph that holds it never keeps a
/// program's objects from being collected. While it runs, its scopes live.
class Tap {
 public:
  uint64_t id() const { return id_; }  // never used again; for nodes that can hold only a number: Engine::tap()
  Phase phase() const { return phase_; }
  Point point() const { return point_; }
  /// kObserve: no value will be replaced, so nothing need wait for the tap or take its results. kTransform: some will.
  /// kUnknown: some may; where the driver refuses edits it puts the tap there to look. kTraceable: Engine::run() may be
  /// called in lower(), once, with a call whose operands are the graph's own symbols, and what the routines do with
  /// them becomes part of the graph; a driver that can't do that takes it as kTransform.
  RoutineKind kind() const { return kind_; }
  /// Does it get this operand (of its own side)? To others `get` may answer null. A replacement gets all: it may run
  /// the original.
  bool selects(size_t position) const;
  /// After the operator: is it shown this input, too (a backward operator's: gradient that comes in)? To others `get`
  /// may answer null. Only where Capabilities::both_sides.
  bool shows_input(size_t position) const;
  bool differentiable() const { return differentiable_; }  // else gradients pass it by, straight through

 protected:
  Tap(uint64_t id, Phase phase, const ActionInfo& like) : id_(id), phase_(phase), point_(like.point) {}
  ~Tap() = default;

  const uint64_t id_;
  const Phase phase_;
  const Point point_;
  RoutineKind kind_ = RoutineKind::kUnknown;
  bool differentiable_ = false, all_ = false, shows_all_ = false;
  std::vector<size_t> positions_, shows_;  // unless all
};
using TapPtr = std::shared_ptr<const Tap>;

/// One operator's taps in the order they run: those before it, at most one in its place, those after it.
struct SitePlan {
  size_t index;  // of the operator: how many each_op() showed before it
  std::vector<TapPtr> taps;
};

/// What a driver shows a graph to. Given to each_op(), and good during that call, on its thread.
class GraphVisitor {
 public:
  /// An operator, as a site on the driver's stack. Analyses run now; actions do not. An analysis that fails is not
  /// thrown from here, so that it need not travel through the driver: the rest of the visit does nothing, and
  /// Engine::instrument throws it.
  void op(OpSite& site);
  /// Something that runs and that tools are not shown, and why: for coverage reports. "positive", "inside XLA".
  void unseen(std::string what, std::string reason);

 protected:
  GraphVisitor() = default;
  ~GraphVisitor() = default;
};

/// A graph, as the core sees it while it is instrumented; what OpCall is to an execution. Lives on the driver's stack.
///
/// Called by Engine::instrument only, on its thread, under no lock of the core's.
class GraphSite {
 public:
  virtual Backend& backend() const = 0;
  /// Shows each operator once: operands before users (a loop's back edges apart), a forward operator before its
  /// backward ones. The id must not be 0. Several nodes may have one id, if they are one place of the program.
  ///
  /// Bodies of loops, conditionals and calls belong to the graph, unless the framework builds them as graphs of their
  /// own and instruments those. What only connects - the loop itself, a sum of gradients - is no operator, as in eager.
  /// Backward operators are shown where the graph has them; if the framework differentiates what lower() gives it, as
  /// it will make them, right after their forward operator. That one may also be in another graph, instrumented before
  /// under the same toolset.
  virtual void each_op(GraphVisitor& visitor) = 0;
  /// Makes the artifact: a graph of its own, or nodes beside the original, whose vanilla runs must not be able to tell.
  /// (A graph that is being built under this toolset alone may be changed in place, by what cannot fail half-way.)
  /// `sites`: the operators that have taps, as shown; not called without any. What it gives must hold its taps; it is
  /// let go of on any thread, without an interpreter's lock.
  /// A failure makes the graph run vanilla, with one warning: throw `Error` with a reason only. What is no
  /// std::exception, as a binding makes of an interrupt, passes on as itself.
  ///
  /// A tap in an operator's place can run the original: call_original() asks for it, and so does a tap whose tools are
  /// gone. Where a node cannot, let it take the original's results, computed beside it, and hand those over.
  ///
  /// What backward operators get is the same in every regime:
  ///   - an input that their forward operator saved is what came out of the taps before it;
  ///   - a result that it saved is its own, or its replacement's: not what taps after it made of that;
  ///   - gradients pass taps straight through, unless a tap is differentiable.
  /// A replacement's gradient is its own if the framework differentiates afterwards, or traces it. Else the backward
  /// operators of what it replaced stay, and get its results.
  virtual std::shared_ptr<void> lower(const std::vector<SitePlan>& sites) = 0;

 protected:
  ~GraphSite() = default;
};

/// What became of a graph under a toolset. Immutable; any thread.
struct Artifact {
  std::shared_ptr<void> lowered;  // by GraphSite::lower(); null: run the original
  struct Unseen {
    std::string what, reason;
  };
  std::vector<Unseen> unseen;
  std::string failure;  // why it could not be lowered; "": it could, or nothing was wanted
};
using ArtifactPtr = std::shared_ptr<const Artifact>;

/// A graph's artifacts, where the framework has no cache that a toolset can be part of the key of. The driver keeps one
/// with each graph: the artifacts go when it goes, or when the toolset is over. Any thread.
class ArtifactCache {
 public:
  ArtifactCache();
  ~ArtifactCache();

  /// The artifact for what of the graph is to run (`signature`: its fetches and feeds, say). One thread builds it, by
  /// Engine::instrument, while others wait, between the wait hooks of scope.h. What that throws is not remembered, a
  /// failure to lower is.
  ArtifactPtr get(const ToolsetPtr& toolset, const std::string& signature, GraphSite& graph);
  /// Forgets all that are built: the graph itself has changed.
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

}  // namespace amanda
