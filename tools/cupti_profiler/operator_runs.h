// The operators that run, thread by thread, and what each run measures.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "amanda/probe.h"
#include "cupti_profiler/kernel_collection.h"
#include "cupti_profiler/operator_tree.h"

namespace amanda::tools {

/// One run, for a trace. Times are the steady clock's, in nanoseconds.
struct RunEvent {
  uint64_t run;          ///< run_id()
  uint32_t node;         ///< in the operator tree
  uint32_t thread;       ///< the system's number
  int64_t start_ns;      ///< before the operator
  int64_t end_ns;        ///< after it
  RunMeasures measures;  ///< what it measured
};

/// The runs of operators. Each thread has its own open runs; the sums are shared. On any thread.
class OperatorRuns {
 public:
  /// Measures allocations with `probe`, keeps the first `max_events` runs, and reports runs to `kernels`, which may be
  /// null.
  OperatorRuns(FrameworkProbe probe, size_t max_events, std::shared_ptr<KernelCollection> kernels = nullptr);

  /// Are runs that begin from now on reported to `kernels`? At first they are not.
  void tell_kernels(bool tell) { telling_ = tell; }

  class Bracket;

  /// Where runs of one operator begin. Remembers the node of the last run: most runs are inside the same operators each
  /// time.
  struct Place {
    /// Of this operator in tree().
    explicit Place(uint32_t op) : op(op) {}
    const uint32_t op;                               ///< in tree()
    std::atomic<OperatorTree::Node*> last{nullptr};  ///< the node of the last run
  };

  /// The operators, and what they add up to.
  OperatorTree& tree() { return tree_; }
  /// The operators, and what they add up to.
  const OperatorTree& tree() const { return tree_; }
  std::vector<RunEvent> events() const;  ///< the first runs, up to the maximum
  /// How many runs came after the maximum.
  uint64_t dropped_events() const;
  /// How many outermost runs have no measured allocations, because another listener was active.
  uint64_t unheard() const { return unheard_; }
  /// What the constructor was given.
  const FrameworkProbe& probe() const { return probe_; }
  /// Sets everything to zero.
  void reset();

 private:
  struct OpenRun;
  struct Stack;

  Stack& stack();
  void begin(Stack& stack, Place& place, Bracket& bracket, int64_t now);
  void end(Stack& stack, size_t depth, int64_t now, int64_t operand_bytes);
  void forget(Stack& stack, uint64_t run);
  void close_top(Stack& stack);
  static void heard(int64_t bytes, bool on_host) noexcept;

  const FrameworkProbe probe_;
  const size_t max_events_;
  const std::shared_ptr<KernelCollection> kernels_;
  const std::shared_ptr<void> alive_ = std::make_shared<char>();
  OperatorTree tree_;
  std::atomic<bool> telling_{false};
  std::atomic<uint64_t> numbers_{0}, unheard_{0};
  mutable std::mutex mutex_;  // of what follows
  std::vector<RunEvent> events_;
  uint64_t dropped_events_ = 0;
};

/// One run of an operator, begun before it and ended after it, on one thread. Destroyed without end(): the operator
/// threw an exception.
class OperatorRuns::Bracket {
 public:
  /// Not open.
  Bracket() = default;
  ~Bracket();
  Bracket(const Bracket&) = delete;
  Bracket& operator=(const Bracket&) = delete;

  /// Begins a run at this place.
  void begin(const std::shared_ptr<OperatorRuns>& runs, Place& place);
  /// The operator is done; the time until end() does not belong to it.
  void stop();
  /// Ends the run. Runs that began inside it and did not end have failed.
  void end(int64_t operand_bytes = 0);

  int64_t input_bytes = 0;  ///< sizes of the inputs, noted before the operator

 private:
  friend class OperatorRuns;
  std::shared_ptr<OperatorRuns> runs_;  // null: not open
  Stack* stack_ = nullptr;
  size_t depth_ = 0;
  uint64_t run_ = 0;
  int64_t stopped_ns_ = 0;
};

}  // namespace amanda::tools
