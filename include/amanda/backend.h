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

inline constexpr int kSeamVersion = 2;  // checked by Engine::attach

using OpId = uint64_t;    // a place in the program; 0: not identified
using OpType = uint32_t;  // dense, interned by the driver once per operator type

enum class Phase : uint8_t { kForward, kBackward };
enum class Point : uint8_t { kBefore, kReplace, kAfter };
enum class Detail : uint8_t { kModulePath, kSource, kIsRecompute };

class Backend;
class Plan;
class ScopeStack;
struct Sighting;
using PlanPtr = std::shared_ptr<const Plan>;
using SightingPtr = std::shared_ptr<const Sighting>;

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
  virtual OpId id() = 0;                               // computed when first asked
  virtual size_t size(Point side) const = 0;           // kBefore: inputs or grad_outputs; kAfter: the others
  virtual Value get(Point side, size_t position) = 0;  // null ref: None, or no longer alive
  virtual std::string detail(Detail which) = 0;        // analysis only

  // Of the forward operator: a backward operator has one, a forward operator is it.
  virtual OpType forward_type() const { return type(); }
  virtual OpId forward_id() { return id(); }
  virtual size_t forward_size(Point side) const { return size(side); }
  virtual Value forward_get(Point side, size_t position) { return get(side, position); }  // analysis only

  // Backward only.
  virtual const Sighting* sighting() const { return nullptr; }  // what bind_backward() was given
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
  bool keep_inputs = false;      // get(kBefore, ...) is asked for once more after the run
  Edit edit_result = Edit::kNo;  // as far as earlier runs tell
  bool in_replacement = false;   // a replacement runs it, as a part of the program
};

/// One execution of an operator.
///
/// Either run() or skip() comes first, then, if there were actions, finish(). `set` checks a value (type, dtype,
/// device, aliasing) and holds it back until `commit`, which puts all held values in place and keeps gradient edges;
/// `discard` forgets them. Both sides: kBefore before the run, kAfter after run() or skip().
class OpCall : public OpSite {
 public:
  virtual void run(RunHints hints) = 0;   // the original, on the current inputs, below instrumentation
  virtual void skip(RunHints hints) = 0;  // instead of run(): the results are those set at kAfter
  virtual bool has_results() const = 0;   // did run() or skip() begin to put results where the inputs were?
  virtual void finish() = 0;              // no action follows: results go where the program expects them
  /// Throws `Error` with a reason only ("float64 where float32 is needed"); the core adds who and where.
  virtual void set(Point side, size_t position, Value value) = 0;  // the driver copies out of the Value
  virtual void commit() = 0;
  virtual void discard() noexcept = 0;
  virtual bool records() const { return true; }  // does the program record gradients of this call?
  /// Changes where the same place makes other backward operators: which operands a gradient is recorded for. 0: none,
  /// and the operator itself makes no backward operator.
  virtual uint64_t gradient_mask() const { return 1; }
  /// Changes when an operand of that side is mutated in place. kReplace: an input that the operator itself leaves
  /// alone.
  virtual uint64_t versions(Point side) const = 0;

  // Forward only, and only if some tool may want backward operators: those are what is recorded from watch_backward()
  // on, until bind_backward().
  /// `keep_operands`: an analysis of one of them may ask for the forward operands; as far as they stay alive.
  virtual void watch_backward(bool /*keep_operands*/) {}
  /// These tools see them, under the scopes that the operator began under: it may have left them meanwhile. False: some
  /// analysis of them is still to be run.
  virtual bool bind_backward(ScopeStack& /*scopes*/, const SightingPtr& /*seen_by*/) { return true; }

 protected:
  ~OpCall() = default;
};

/// How a routine runs: apart from the program's gradient recording, or as part of it.
enum class RoutineMode : uint8_t { kIsolated, kAmbient };

struct Capabilities {
  bool backward = false, symbolic_analysis = false, can_replace = false, can_change_shape = false;
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
  virtual void* begin_routines(RoutineMode mode) = 0;  // not observed; kIsolated: no recording either
  virtual void end_routines(void* token) noexcept = 0;
  /// Did the program raise this, while a tool's code ran? Then it is no failure of the tool.
  virtual bool is_programs(const std::exception_ptr&) const { return false; }
  /// Why an operator can't be replaced, or (kBefore, kAfter) its operand at `position` edited; empty: it can. A
  /// replacement is asked about at analysis, an edit when it is made: looking is always allowed.
  virtual std::string refusal(OpSite&, Point, bool /*allow_view*/, size_t /*position*/) const { return {}; }
  /// What a value of this backend is, in no framework's terms. On any thread, while the value lives; a null one is
  /// kNone.
  ///
  /// Changes nothing, waits for no device and guards no symbol. Made for analyses, and cheap enough for routines that
  /// read shapes at each run: a tensor takes no allocation. Throws what a tensor subclass throws when it is asked.
  virtual ValueInfo describe(Value value) const { return {.kind = value.ref ? ValueKind::kOther : ValueKind::kNone}; }

  size_t index() const { return index_; }  // among attached backends

 private:
  friend class Engine;
  size_t index_ = 0;
};

}  // namespace amanda
