// The seam, downward half: the interfaces that a driver implements. No framework, no Python, no std::function here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "amanda/op.h"
#include "amanda/run_state.h"
#include "amanda/value.h"

namespace amanda {

/// Version of the interface between core and drivers; Engine::attach() compares it.
inline constexpr int kSeamVersion = 9;

/// The kinds of detail that OpSite::detail() returns: the module path, "file:line" of the user's call, or whether the
/// operator is recomputed ("" if it is not).
enum class Detail : uint8_t { kModulePath, kSource, kIsRecompute };

/// A factor for the version of the operand at `position`, which a driver may use in the sum that versions() returns.
/// Messages then name the operand that a tool changed in place.
constexpr uint64_t version_weight(size_t position) {
  const uint64_t mixed = (position + 1) * 0x9E3779B97F4A7C15u;
  return (mixed ^ mixed >> 32) | 1;
}

class Plan;
class ScopeStack;
struct Subscription;
/// A shared plan of actions, internal to the core.
using PlanPtr = std::shared_ptr<const Plan>;
/// The tools that see an operator's backward operators. Opaque to drivers, which keep it with the backward operators.
using SubscriptionPtr = std::shared_ptr<const Subscription>;

/// An operator as analysis sees it: an eager call, a graph node, a tap. It lives on the driver's stack, and is used on
/// one thread.
class OpSite {
 public:
  /// The driver.
  virtual Backend& backend() const = 0;
  /// The operator's type.
  virtual OpType type() const = 0;
  /// Whether it is a forward or a backward operator.
  virtual Phase phase() const = 0;
  /// The operator's id. May be computed on the first call.
  virtual OpId id() = 0;
  /// The number of operands that it has on that side.
  virtual size_t size(Side side) const = 0;
  /// An operand, borrowed. `ref` is null if the operand is None or no longer alive.
  virtual Value get(Side side, size_t position) = 0;
  /// Called while analyses run, and for messages while routines do.
  virtual std::string detail(Detail which) = 0;
  /// An attribute as text, for example "NHWC": a value that the framework fixes when it creates the operator, and does
  /// not pass as an operand. "" if the operator has no such attribute. Called during analysis only.
  virtual std::string attribute(std::string_view /*name*/) { return {}; }

  /// The forward operator's type: a backward operator has one, a forward operator is its own.
  virtual OpType forward_type() const { return type(); }
  /// The forward operator's id.
  virtual OpId forward_id() { return id(); }
  /// The number of operands that the forward operator has on that side.
  virtual size_t forward_size(Side side) const { return size(side); }
  /// The forward operator's operand, borrowed; null if it is no longer alive. Called during analysis only.
  virtual Value forward_get(Side side, size_t position) { return get(side, position); }
  /// The forward operator's attribute. Called during analysis only.
  virtual std::string forward_attribute(std::string_view name) { return attribute(name); }

  /// Backward only: the subscription that was passed to OpCall::bind_backward().
  virtual const Subscription* subscription() const { return nullptr; }
  /// Backward only: the object that the RunSource of OpCall::bind_backward() returned. Null if the driver did not call
  /// it.
  virtual RunStatePtr run_state() const { return nullptr; }
  /// Backward only: true if the forward operator's run created it. False for the node of a leaf, and for one that
  /// another backward operator created.
  virtual bool made_by_forward() const { return true; }

 protected:
  ~OpSite() = default;
};

/// Whether an action after the operator will replace a result.
enum class Edit : uint8_t { kNo, kUnknown, kYes };

/// The facts that the core knows when it lets the original operator run.
struct RunHints {
  bool observe_inner = false;    ///< a tool may ask for an operator inside this one
  bool keep_inputs = false;      ///< `get(kInputs, ...)` is called once more after the run
  Edit edit_result = Edit::kNo;  ///< according to earlier runs
  bool in_replacement = false;   ///< called by a replacement, as part of the program
  bool keep_run_inputs = false;  ///< `show_run_inputs()` is called after the run, and `get(kInputs, ...)` after it
};

/// Access to the objects that routines share between one execution of a forward operator and its backward operators.
/// Valid during OpCall::bind_backward().
class RunSource {
 public:
  /// The shared objects, created and counted on the first call. Call this for a backward operator whose HookNeeds say
  /// `run` or `pending`, and keep the result as long as that operator may run.
  virtual RunStatePtr run_state() = 0;
  /// The plan of the forward operator, for a BackwardBinding. Null if there is none. Valid as long as this object.
  virtual const PlanPtr* plan() { return nullptr; }

 protected:
  ~RunSource() = default;
};

/// One execution of an operator, on one thread.
///
/// The core calls either run() or skip(), and then, if there were actions, finish(). A value is checked (type, dtype,
/// device, aliasing) and held back by set(). All held values are put in place by commit(), which keeps gradient edges,
/// or dropped by discard(). Inputs are set before the run; outputs after run(), or, by a replacement, before skip().
class OpCall : public OpSite {
 public:
  /// Runs the original on the current inputs, below instrumentation. Throws what the operator throws.
  virtual void run(RunHints hints) = 0;
  /// Called instead of run(): the results are the outputs that were set.
  virtual void skip(RunHints hints) = 0;
  /// True if results have replaced the inputs, as on an interpreter's stack. The original can then not run any more.
  virtual bool has_results() const = 0;
  /// Called after the run: from now on `get(kInputs, ...)` returns the inputs on which the operator, or its
  /// replacement, ran, including edits of tools. Before this call, it returns the inputs that the program passed.
  virtual void show_run_inputs() {}
  /// Called when no action follows: puts the results where the program expects them.
  virtual void finish() = 0;
  /// Holds back a copy of the value for this operand. Throws `Error` with a reason only ("float64 where float32 is
  /// needed"); the core adds who and where.
  virtual void set(Side side, size_t position, Value value) = 0;
  /// Asked after each set(): true if the held value passes no gradient on to the operand that it replaces, and the
  /// program records that operand's gradient. Values of another shape do.
  virtual bool stops_gradient(Side /*side*/, size_t /*position*/, Value /*value*/) { return false; }
  /// Puts the held values in place.
  virtual void commit() = 0;
  /// Drops the held values.
  virtual void discard() noexcept = 0;
  /// True if the program records gradients of this call.
  virtual bool records() const { return true; }
  /// A fingerprint of the inputs that require a gradient: it differs where the same place creates other backward
  /// operators. 0 if nothing is recorded and the operator itself creates no backward operator.
  virtual uint64_t gradient_mask() const { return 1; }
  /// Changes when an operand of that side is changed in place.
  virtual uint64_t versions(Side side) const = 0;
  /// The same for the inputs that the operator itself does not change.
  virtual uint64_t unmutated_versions() const { return versions(Side::kInputs); }

  /// Forward only, and only if a tool may ask for backward operators: those created from here until bind_backward()
  /// belong to this call. `keep_operands`: an analysis of one of them may ask for the forward operands, if they are
  /// still alive.
  virtual void watch_backward(bool /*keep_operands*/) {}
  /// Forward only: these tools see the backward operators that were created, under the scopes that were open when the
  /// operator began, even if the thread has left these scopes since. Returns false if an analysis of some of them still
  /// has to run.
  virtual bool bind_backward(ScopeStack& /*scopes*/, const SubscriptionPtr& /*seen_by*/, RunSource& /*runs*/) {
    return true;
  }

 protected:
  ~OpCall() = default;
};

/// The mode in which a routine runs: without the program's gradient recording; as part of it; or with the promise that
/// the routine calls no operator, so that nothing has to be changed for it.
enum class RoutineMode : uint8_t { kIsolated, kAmbient, kNoOperators };

/// The facts about a scheduled action that a driver may know.
struct ActionInfo {
  Phase phase{};                              ///< on a forward or a backward operator
  Point point{};                              ///< where its routine runs
  RoutineKind kind = RoutineKind::kUnknown;   ///< whether the routine reads or edits its values
  RoutineMode mode = RoutineMode::kIsolated;  ///< whether it is recorded
  bool all_positions = true;                  ///< it gets all operands of its side
  std::vector<size_t> positions{};            ///< those it gets, unless all
  bool allow_view = false;                    ///< an edit may end the sharing of memory between the program's tensors
  bool may_mutate = false;                    ///< the routine may change operands in place
  bool shows_all = false;                     ///< after the operator: all inputs are shown to it, too
  std::vector<size_t> shows{};                ///< the inputs that are shown to it, unless all

  /// After the operator: true if an input is also shown to the routine.
  bool shows_any() const { return shows_all || !shows.empty(); }
  /// True if the routine gets any operand.
  bool selects_any() const { return all_positions || !positions.empty(); }
  /// True if it is certain that the routine replaces no value.
  bool only_looks() const { return point != Point::kReplace && (kind == RoutineKind::kObserve || !selects_any()); }
  /// True if it is certain that the routine replaces a value.
  bool surely_edits() const { return point == Point::kReplace || (kind >= RoutineKind::kTransform && selects_any()); }
};

/// The parts of a backward pass that tools see. `kNodes`: the nodes of a tape, including those of leaves. `kOperators`:
/// the operators that compute gradients, perhaps several for one forward operator. `kOne`: one for each forward
/// operator.
enum class BackwardOps : uint8_t { kNone, kNodes, kOperators, kOne };

/// The abilities of a driver.
struct Capabilities {
  BackwardOps backward = BackwardOps::kNone;  ///< the parts of a backward pass that tools see
  bool symbolic_analysis = false;             ///< analyses run before operands have values
  bool can_replace = false;                   ///< operators can be replaced
  bool can_change_shape = false;              ///< an edit may change an operand's shape
  /// Gradients are in the graph already: a replacement that can't be traced has none of its own, and the backward
  /// operators of the replaced operator stay.
  bool keeps_gradients = false;
  bool both_sides = false;  ///< after an operator its inputs can be shown; in a graph: see Tap::shows_input()
};

/// The calls that Backend::await_call() waited for.
struct AwaitedCall {
  bool here = false;      ///< an operator was called on the thread that waits
  std::string elsewhere;  ///< the operator that another thread called first, "aten::conv2d"; or empty
};

/// A framework, as the core sees it. One object per framework, alive as long as the process.
class Backend {
 public:
  virtual ~Backend() = default;
  /// The driver's name: "pytorch/2.13/eager".
  virtual std::string_view name_space() const = 0;
  /// The driver's abilities. They stay the same for the life of the process.
  virtual Capabilities capabilities() const = 0;
  /// Describes a type. Filters are matched once per type, so this need not be fast.
  virtual const OpInfo& info(OpType type) const = 0;
  /// Observes operators on this thread under these scopes from now on. If `scopes` is null, the driver stops observing.
  virtual void switch_to(ScopeStack* scopes) = 0;
  /// A tool in a scope of another thread asks for these operators too, from now on; "*": for all. That thread gets a
  /// switch_to() when it next runs one of them.
  virtual void expect(const std::vector<std::string>& /*patterns*/) {}
  /// A scope was entered on this thread whose filters have matched nothing yet. Notes whether the program calls some
  /// operator, asked for or not, while the thread is switched to scopes; with `elsewhere`, also whether the first one
  /// is called by another thread, which is in no scope. `entry` is never used again. This may add a cost to the first
  /// operator, and none to those after it.
  virtual void await_call(uint64_t /*entry*/, bool /*elsewhere*/) {}
  /// Ends the wait that await_call() began on the same thread, if there is one. Returns what was called since.
  virtual AwaitedCall end_await_call(uint64_t /*entry*/) { return {}; }
  /// Stops observing this thread; with `kIsolated`, also stops gradient recording. Returns a token for end_routines().
  virtual void* begin_routines(RoutineMode mode) = 0;
  /// Restores what begin_routines() changed, on the same thread.
  virtual void end_routines(void* token) noexcept = 0;
  /// True if the program, not the tool, raised this exception while a tool's code ran. It is then not a failure of the
  /// tool.
  virtual bool is_programs(const std::exception_ptr&) const { return false; }
  /// The reason why this action cannot replace the operator, or edit its operand at `position`. Empty if it can.
  ///
  /// Called at analysis for a replacement and for an action that declares edits (for a graph's operator: while
  /// each_op() shows it), and at each edit of an action that declares nothing. An action that only reads is always
  /// allowed.
  virtual std::string refusal(OpSite& /*site*/, const ActionInfo&, size_t /*position*/) const { return {}; }
  /// Describes a value of this backend independently of the framework. On any thread, while the value lives; a null one
  /// is `kNone`.
  ///
  /// Changes nothing, waits for no device and guards no symbol. Cheap enough for routines that read shapes at each run:
  /// a tensor takes no allocation. Throws any exception that a tensor subclass throws when it is queried.
  virtual ValueInfo describe(Value value) const { return {.kind = value.ref ? ValueKind::kOther : ValueKind::kNone}; }
  /// The name of a parameter or a buffer in its model: "encoder.0.weight". For a view, the name of the parameter or
  /// buffer that it is a view of. "" for any other value. For analyses: this may search through all models.
  virtual std::string parameter_name(Value /*tensor*/) const { return {}; }
  /// The same for each member of a list of tensors; empty for any other value.
  virtual std::vector<std::string> parameter_names(Value /*list*/) const { return {}; }

  /// The driver's index among attached backends.
  size_t index() const { return index_; }
  /// The index of the backend whose operator ids it uses; by default its own.
  size_t ids() const { return ids_; }

 private:
  friend class Engine;
  size_t index_ = 0, ids_ = 0;
};

}  // namespace amanda
