// The seam, upward half: what a driver calls.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "amanda/backend.h"
#include "amanda/graph.h"

namespace amanda {

class Tool;

class Engine {
 public:
  /// Registers a framework. Throws `Error` when the driver was built for another seam version.
  /// `same_ids_as`: another backend of the same framework, attached before, with the same ids for the same places: what
  /// was analysed in one mode holds in the other. Null: its ids are its own.
  static void attach(Backend& backend, int seam_version = kSeamVersion, const Backend* same_ids_as = nullptr);

  /// The attached backend of this name space; null: none.
  static const Backend* find_backend(std::string_view name_space) noexcept;

  /// Eager: one operator call, top to bottom, forward or backward. See src/engine.cpp.
  static void on_op(ScopeStack& scopes, OpCall& call);

  // Graphs: see graph.h.
  /// The tools in force for a graph that is about to run on this thread. Call it once for each run, with the scopes of
  /// switch_to(); do not call it while they are null or a routine runs.
  static ToolsetPtr toolset(const ScopeStack& scopes);
  /// Analyses a graph's operators and has the driver lower what tools want. On any thread, also where none of the
  /// scopes is open or where they were left: a gradient's graph may be built later than its forward graph.
  /// If the scope objects are gone, the artifact is empty. Throws what a tool's analysis threw, as itself; `Error`
  /// naming tool, operator and reason for an action that the driver refuses; `Error` naming driver and operator for a
  /// visit that breaks the rules of each_op(). Never null.
  static ArtifactPtr instrument(const Toolset& toolset, GraphSite& graph);
  /// Runs a tap's actions, from the node that was inserted for it. On any thread, several at once, without any lock:
  /// routines that need an interpreter's lock take it. `call` shows the operands that reach the tap; kBefore: its
  /// inputs flow on; kReplace, kAfter: its results. Throws what a routine threw, as itself. Actions of scopes that are
  /// gone, of tools that stopped and actions that were removed do not run: values stay, and at kReplace the original
  /// runs. `open`: if the thread's scopes are known, only those act; null: the choice of the artifact was the choice of
  /// tools.
  static void run(const Tap& tap, OpCall& call, const ScopeStack* open = nullptr, RunState* state = nullptr);
  /// The tap with this id. Null: nothing holds it any more, or another process created it; values pass unchanged then.
  static TapPtr tap(uint64_t id);

  /// This thread's open scopes, kept alive with their tools as long as the pointer lives; null: none, or switched off.
  static std::shared_ptr<ScopeStack> scopes_here();
  /// Those of another thread, to work with on its behalf; null: it has left them.
  static std::shared_ptr<ScopeStack> borrow(const std::weak_ptr<ScopeStack>& of_another_thread);
  /// Is this thread inside an operator, and nobody is to see what is inside it?
  static bool sees_nothing_inside(const ScopeStack& scopes) noexcept;

  /// Does any tool of these scopes ask for this operator type, nested or not?
  static bool wants(const ScopeStack& scopes, const Backend& backend, OpType type) noexcept;
  /// Does some tool ask for every type? Then filtering by type is not worth installing.
  static bool wants_all(const ScopeStack& scopes) noexcept;
  /// The patterns by which tools of these scopes ask for operators.
  static std::vector<std::string> patterns(const ScopeStack& scopes);

  // For reports, not for each call: of some tools.
  using Tools = std::vector<const Tool*>;  // only compared
  /// Is a call, that on_op() is about to be told of, shown to one of them?
  static bool shows(const ScopeStack& scopes, const OpSite& site, const Tools& tools);
  /// Does one that is active ask for this operator type, nested or not?
  static bool is_asked_for(const ScopeStack& scopes, const Backend& backend, OpType type, const Tools& tools);
  /// Does one that is active ask for backward operators?
  static bool asks_for_backward(const ScopeStack& scopes, const Tools& tools);

  /// Runs what `get_op()` stands for: inside a replacement, the replacement it wraps; else the original.
  static void call_original(OpCall& call);
};

}  // namespace amanda
