// The seam, downward half: what a driver supplies. No framework, no Python, no std::function here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "amanda/value.h"

namespace amanda {

inline constexpr int kSeamVersion = 3;  // checked by Engine::attach

using OpId = uint64_t;    // a place in the program; 0: not identified
using OpType = uint32_t;  // dense, interned by the driver once per operator type

enum class Phase : uint8_t { kForward, kBackward };
enum class Point : uint8_t { kBefore, kReplace, kAfter };  // where a routine runs
/// Which operands. A backward operator's inputs are the grad_outputs that come in, its outputs the grad_inputs that go
/// out.
enum class Side : uint8_t { kInputs, kOutputs };
constexpr Side side_of(Point point) { return point == Point::kAfter ? Side::kOutputs : Side::kInputs; }
enum class Detail : uint8_t { kModulePath, kSource, kIsRecompute };

class Backend;
class Plan;
class ScopeStack;
struct Subscription;
using PlanPtr = std::shared_ptr<const Plan>;
using SubscriptionPtr = std::shared_ptr<const Subscription>;

/// What is known of an operator type. The driver keeps it for the life of the process.
struct OpInfo {
  std::string ns, name, overload;            // "aten", "conv2d", ""
  std::vector<std::string> inputs, outputs;  // names of the positions; an unnamed output is ""
  std::string schema;                        // as the framework prints it
};

/// An operator as analysis sees it: an eager call, a graph node, a tap. Lives on the driver's stack.
class OpSite {
 public:
  virtual Backend& backend() const = 0;
  virtual OpType type() const = 0;
  virtual Phase phase() const = 0;
  virtual OpId id() = 0;  // computed when first asked
  virtual size_t size(Side side) const = 0;
  virtual Value get(Side side, size_t position) = 0;  // null ref: None, or no longer alive
  virtual std::string detail(Detail which) = 0;       // analysis only

  // Of the forward operator: a backward operator has one, a forward operator is it.
  virtual OpType forward_type() const { return type(); }
  virtual OpId forward_id() { return id(); }
  virtual size_t forward_size(Side side) const { return size(side); }
  virtual Value forward_get(Side side, size_t position) { return get(side, position); }  // analysis only

  // Backward only.
  virtual const Subscription* subscription() const { return nullptr; }  // what bind_backward() was given
  /// Was it made by the forward operator's run? Not: what stands for a leaf, or was made by another backward operator.
  virtual bool made_by_forward() const { return true; }

 protected:
  ~OpSite() = default;
};

/// Will an after-action put another result in place?
enum class Edit : uint8_t { kNo, kUnknown, kYes };

/// What the core knows when it lets the original operator run.
struct RunHints {
  bool observe_inner = false;    // an operator inside this one may be wanted
  bool keep_inputs = false;      // get(kInputs, ...) is asked for once more after the run
  Edit edit_result = Edit::kNo;  // as far as earlier runs tell
  bool in_replacement = false;   // a replacement runs it, as a part of the program
};

/// One execution of an operator.
///
/// Either run() or skip() comes first, then, if there were actions, finish(). `set` checks a value (type, dtype,
/// device, aliasing) and holds it back until `commit`, which puts all held values in place and keeps gradient edges;
/// `discard` forgets them. Inputs are set before the run; outputs after run(),
/// or, by a replacement, before skip().
class OpCall : public OpSite {
 public:
  virtual void run(RunHints hints) = 0;   // the original, on the current inputs, below instrumentation
  virtual void skip(RunHints hints) = 0;  // instead of run(): the results are the outputs that were set
  /// Have results taken the place of the inputs, as on an interpreter's stack? Then the original cannot run any more.
  virtual bool has_results() const = 0;
  virtual void finish() = 0;  // no action follows: results go where the program expects them
  /// Throws `Error` with a reason only ("float64 where float32 is needed"); the core adds who and where.
  virtual void set(Side side, size_t position, Value value) = 0;  // the driver copies out of the Value
  virtual void commit() = 0;
  virtual void discard() noexcept = 0;
  virtual bool records() const { return true; }  // does the program record gradients of this call?
  /// Changes where the same place makes other backward operators: which operands a gradient is recorded for. 0: none,
  /// and the operator itself makes no backward operator.
  virtual uint64_t gradient_mask() const { return 1; }
  /// Changes when an operand of that side is mutated in place.
  virtual uint64_t versions(Side side) const = 0;
  /// The same for the inputs that the operator itself does not mutate.
  virtual uint64_t unmutated_versions() const { return versions(Side::kInputs); }

  // Forward only, and only if some tool may want backward operators: those are what is recorded from watch_backward()
  // on, until bind_backward().
  /// `keep_operands`: an analysis of one of them may ask for the forward operands; as far as they stay alive.
  virtual void watch_backward(bool /*keep_operands*/) {}
  /// These tools see them, under the scopes that the operator began under: it may have left them meanwhile. False: some
  /// analysis of them is still to be run.
  virtual bool bind_backward(ScopeStack& /*scopes*/, const SubscriptionPtr& /*seen_by*/) { return true; }

 protected:
  ~OpCall() = default;
};

/// How a routine runs: apart from the program's gradient recording, or as part of it.
enum class RoutineMode : uint8_t { kIsolated, kAmbient };

/// What a tool says about a routine when it schedules it: nothing; it only looks; it edits; it edits, and works on a
/// graph's symbols, too.
enum class RoutineKind : uint8_t { kUnknown, kObserve, kTransform, kTraceable };

/// What a driver may know about a scheduled action.
struct ActionInfo {
  Phase phase{};
  Point point{};
  RoutineKind kind = RoutineKind::kUnknown;
  RoutineMode mode = RoutineMode::kIsolated;
  bool all_positions = true;
  std::vector<size_t> positions{};  // unless all
  bool allow_view = false;
  bool may_mutate = false;

  bool selects_any() const { return all_positions || !positions.empty(); }
  bool only_looks() const { return point != Point::kReplace && (kind == RoutineKind::kObserve || !selects_any()); }
  bool surely_edits() const { return point == Point::kReplace || (kind >= RoutineKind::kTransform && selects_any()); }
};

/// What tools are shown of a backward pass. kNodes: the nodes of a tape, those of leaves too. kOperators: the operators
/// that compute gradients, perhaps several for one forward operator. kOne: one for each forward operator.
enum class BackwardOps : uint8_t { kNone, kNodes, kOperators, kOne };

struct Capabilities {
  BackwardOps backward = BackwardOps::kNone;
  bool symbolic_analysis = false, can_replace = false, can_change_shape = false;
  /// Gradients are in the graph already: a replacement that can't be traced has none of its own, and the backward
  /// operators of what it replaced stay.
  bool keeps_gradients = false;
};

/// A framework, as the core sees it. One object per framework, alive as long as the process.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name_space() const = 0;  // "pytorch/2.13/eager"
  virtual Capabilities capabilities() const = 0;
  virtual const OpInfo& info(OpType type) const = 0;  // cold: filters are matched once per type
  virtual void switch_to(ScopeStack* scopes) = 0;     // on this thread, from now on; null: none
  /// A tool of another thread's scopes asks for these operators, too, from now on; "*": for all. That thread is told by
  /// switch_to() once it runs one of them.
  virtual void expect(const std::vector<std::string>& /*patterns*/) {}
  /// From now on, does the program call some operator on this thread, whether or not a tool asks for it, while it is
  /// switched to scopes? `entry`: of a scope, and never used again. It may cost the first operator, and none after it.
  virtual void await_call(uint64_t /*entry*/) {}
  /// Did it? Ends what await_call() began, on the same thread, if it did.
  virtual bool end_await_call(uint64_t /*entry*/) { return false; }
  virtual void* begin_routines(RoutineMode mode) = 0;  // not observed; kIsolated: no recording either
  virtual void end_routines(void* token) noexcept = 0;
  /// Did the program raise this, while a tool's code ran? Then it is no failure of the tool.
  virtual bool is_programs(const std::exception_ptr&) const { return false; }
  /// Why the operator can't be replaced, or its operand at `position` edited, by this action; empty: it can.
  ///
  /// Called at analysis for a replacement and for an action that says that it edits (a graph's operator: while
  /// each_op() shows it), and at each edit of an action that says nothing. An action that only looks is always allowed.
  virtual std::string refusal(OpSite& /*site*/, const ActionInfo&, size_t /*position*/) const { return {}; }
  /// What a value of this backend is, in no framework's terms. On any thread, while the value lives; a null one is
  /// kNone.
  ///
  /// Changes nothing, waits for no device and guards no symbol. Made for analyses, and cheap enough for routines that
  /// read shapes at each run: a tensor takes no allocation. Throws what a tensor subclass throws when it is asked.
  virtual ValueInfo describe(Value value) const { return {.kind = value.ref ? ValueKind::kOther : ValueKind::kNone}; }

  size_t index() const { return index_; }  // among attached backends
  size_t ids() const { return ids_; }      // the index of the backend whose operator ids it uses: its own, by default

 private:
  friend class Engine;
  size_t index_ = 0, ids_ = 0;
};

}  // namespace amanda
