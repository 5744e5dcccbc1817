// The operators that run, thread by thread, and the measurements of each run.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "amanda/base/mutex.h"
#include "amanda/driver/probe.h"
#include "cupti_profiler/kernel_collection.h"
#include "cupti_profiler/operator_tree.h"
#include "cupti_profiler/run_buffer.h"

namespace amanda::tools {

// NOTE: [what a run costs]
// A run reads the clock twice: when the operator begins and when it is done. The profiler's own work before and after
// that is not measured each time, but in one run of sixteen. The shortest time that a thread has seen is subtracted
// from the operators around. A run that ended goes to a buffer of its thread, without a lock or a shared counter. The
// sums are updated when that buffer is full, and when they are read.

/// The runs of operators. Each thread has its own open runs; the sums are shared. On any thread.
class OperatorRuns : NoCopy {
 public:
  /// Measures allocations with `probe`, keeps the first `max_events` runs, and reports runs to `kernels`, which may be
  /// null.
  OperatorRuns(FrameworkProbe probe, size_t max_events, std::shared_ptr<KernelCollection> kernels = nullptr);
  ~OperatorRuns();

  /// Sets whether runs that begin from now on are reported to `kernels`. At first they are not.
  void tell_kernels(bool tell) { telling_ = tell; }

  class Bracket;

  /// An operator at its place, where its runs begin. Remembers the node of the last run: most runs are inside the same
  /// operators each time.
  struct Site {
    /// The site of this operator in tree().
    explicit Site(uint32_t op) : op(op) {}
    const uint32_t op;                               ///< in tree()
    std::atomic<OperatorTree::Node*> last{nullptr};  ///< the node of the last run
  };

  /// The operators, and the totals of the runs that have ended by now.
  OperatorTree& tree();
  std::vector<RunEvent> events();  ///< the first runs, up to the maximum; those of one thread in order
  /// The number of runs that came after the maximum.
  uint64_t dropped_events();
  /// The number of outermost runs without measured allocations, because another listener was active.
  uint64_t unheard() const { return unheard_; }
  /// The `probe` that was passed to the constructor.
  const FrameworkProbe& probe() const { return probe_; }
  /// Sets everything to zero.
  void reset();

 private:
  struct OpenRun;
  class OwnTime;
  struct Stack;
  struct ThreadStacks;

  static Stack* recent_stack();
  Stack& stack();
  Stack& find_stack();
  void begin(Stack& stack, Site& site, Bracket& bracket);
  void end(Stack& stack, size_t depth, int64_t now, int64_t operand_bytes);
  void forget(Stack& stack, uint64_t run);
  void close_top(Stack& stack);
  template <class Fn>
  void take_all(const Fn& fn);
  void collect(RunBuffer& ended);
  void add(const RunBuffer::Run& run);
  static void heard(int64_t bytes, bool on_host) noexcept;

  const uint64_t serial_;  // of this process
  const FrameworkProbe probe_;
  const size_t max_events_;
  const std::shared_ptr<KernelCollection> kernels_;
  OperatorTree tree_;
  std::atomic<bool> telling_{false};
  std::atomic<uint64_t> unheard_{0};
  Mutex mutex_;  // of the members below, of the sums in tree_, and of taking from buffers
  std::vector<std::shared_ptr<Stack>> stacks_;
  std::vector<RunEvent> events_;
  uint64_t dropped_events_ = 0;
};

/// One run of an operator, begun before it and ended after it, on one thread. Destroyed without end(): the operator
/// threw an exception.
class OperatorRuns::Bracket : NoCopy {
 public:
  /// Not open.
  Bracket() = default;
  ~Bracket();

  /// Begins a run at this site.
  void begin(const std::shared_ptr<OperatorRuns>& runs, Site& site);
  /// The operator is done; the time until end() does not belong to it.
  void stop();
  /// Ends the run. Runs that began inside it and did not end have failed.
  void end(int64_t operand_bytes = 0);

  int64_t input_bytes = 0;  ///< sizes of the inputs, noted before the operator

 private:
  friend class OperatorRuns;
  static bool is_of_this_thread(const Stack* stack);

  Stack* stack_ = nullptr;  // null if not open; used only if it is this thread's
  size_t depth_ = 0;
  uint64_t run_ = 0;
  int64_t stopped_ns_ = 0;
};

}  // namespace amanda::tools
