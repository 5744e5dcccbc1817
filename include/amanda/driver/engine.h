// The seam, upward half: the functions that a driver calls.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "amanda/driver/backend.h"
#include "amanda/driver/graph.h"
#include "amanda/driver/known_call.h"

namespace amanda {

class Tool;

/// The functions that a driver calls when it observes operators.
class Engine {
 public:
  /// Registers a framework; call it once, on any thread. Throws `Error` if the driver was built for another seam
  /// version. `same_ids_as`: a backend of the same framework that was attached before and gives the same ids to the
  /// same places, so that analysis results hold in both. If it is null, the backend has ids of its own.
  static void attach(Backend& backend, int seam_version = kSeamVersion, const Backend* same_ids_as = nullptr);

  /// The attached backend with this name. Null if there is none. On any thread.
  static const Backend* find_backend(std::string_view name_space) noexcept;

  /// Eager: runs one operator, forward or backward, from its analyses to its last action. Call it on the thread that
  /// runs the operator, in its place. Throws what the operator or a tool threw.
  static void on_op(ScopeStack& scopes, OpCall& call);

  /// A number for these scopes. No other scopes ever have the same number.
  static uint64_t serial(const ScopeStack& scopes) noexcept;
  /// The tools that now see calls of this type on this thread.
  static Sight sight(const ScopeStack& scopes, const Backend& backend, OpType type);
  /// The facts that on_op() found for the operator with this id. Call this after on_op(), on the same thread, under
  /// scopes that are still open on it. If the result is empty, the next call of the operator is passed to on_op()
  /// again.
  static KnownCall known_call(const ScopeStack& scopes, const Backend& backend, OpType type, OpId id);
  /// The work that on_known_op() leaves to the driver.
  struct Left {
    bool runs_operator = false;   ///< the original, without a call of finish()
    bool observes_inner = false;  ///< a tool may ask for an operator inside it
  };
  /// on_op() for a call for which `sight` and `known` hold; `call` has the id that `known` was found for. If all
  /// routines have run and only the operator is left, the driver runs it, with the values that the routines set, inside
  /// an OpFrame of the tools that see it. Nothing of `call` is used after that.
  static Left on_known_op(ThreadCalls& here, ScopeStack& scopes, OpCall& call, const Sight& sight,
                          const KnownCall& known);
  /// Counts a call that the driver did not pass on, since nothing was scheduled on it.
  static void count_hit(const ThreadCalls& here, const ScopeStack& scopes) noexcept;

  /// The tools in force for a graph that is about to run on this thread. Call it once for each run, with the scopes of
  /// switch_to(). Do not call it while they are null or a routine runs.
  static ToolsetPtr toolset(const ScopeStack& scopes);
  /// Analyzes a graph's operators, and has the driver lower the actions that tools scheduled. On any thread, even if
  /// none of the scopes is open any more: a gradient's graph may be built later than its forward graph.
  ///
  /// If the scope objects are gone, the artifact is empty. Throws what a tool's analysis threw, unchanged; `Error`
  /// naming tool, operator and reason for an action that the driver refuses; `Error` naming driver and operator for a
  /// visit that breaks the rules of each_op(). Never null.
  static ArtifactPtr instrument(const Toolset& toolset, GraphSite& graph);
  /// Runs a tap's actions, from the node that was inserted for it. On any thread, several at once, without any lock:
  /// routines that need an interpreter's lock take it.
  ///
  /// `call` shows the operands that reach the tap; after this, its inputs (`kBefore`) or its results (`kReplace`,
  /// `kAfter`) continue. Throws what a routine threw, unchanged. Actions of scopes that are gone, of tools that
  /// stopped, and removed actions do not run: values stay, and at `kReplace` the original runs. `open`: the thread's
  /// scopes, if they are known; only these act. If it is null, all scopes of the artifact act.
  static void run(const Tap& tap, OpCall& call, const ScopeStack* open = nullptr, RunState* state = nullptr);
  /// The tap with this id. Null if nothing holds it any more, or if another process created it; values then pass
  /// unchanged.
  static TapPtr tap(uint64_t id);

  /// This thread's open scopes, kept alive with their tools while the pointer lives. Null if no scope is open, or if
  /// instrumentation is switched off.
  static std::shared_ptr<ScopeStack> scopes_here();
  /// The open scopes of another thread, to work on its behalf. Null if that thread has left them.
  static std::shared_ptr<ScopeStack> borrow(const std::weak_ptr<ScopeStack>& of_another_thread);
  /// True if this thread is inside an operator whose inner operators no tool sees.
  static bool sees_nothing_inside(const ScopeStack& scopes) noexcept;

  /// True if a tool of these scopes asks for this operator type, nested or not.
  static bool wants(const ScopeStack& scopes, const Backend& backend, OpType type) noexcept;
  /// True if a tool asks for every type. Filtering by type then saves nothing.
  static bool wants_all(const ScopeStack& scopes) noexcept;
  /// The patterns by which tools of these scopes ask for operators.
  static std::vector<std::string> patterns(const ScopeStack& scopes);

  /// Some tools, which are only compared. The functions below are for reports, not for each call.
  using Tools = std::vector<const Tool*>;
  /// True if on_op() will show this call to one of the tools.
  static bool shows(const ScopeStack& scopes, const OpSite& site, const Tools& tools);
  /// True if an active one of the tools asks for this operator type, nested or not.
  static bool is_asked_for(const ScopeStack& scopes, const Backend& backend, OpType type, const Tools& tools);
  /// True if an active one of the tools asks for backward operators.
  static bool asks_for_backward(const ScopeStack& scopes, const Tools& tools);

  /// Runs the callable that `get_op()` returns: inside a replacement, the replacement that it wraps; otherwise the
  /// original. Throws what that throws.
  static void call_original(OpCall& call);
};

}  // namespace amanda
