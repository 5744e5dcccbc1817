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

/// One run, for a trace. Times are the steady clock's.
struct RunEvent {
  uint64_t run;  // run_id()
  uint32_t node, thread;
  int64_t start_ns, end_ns;
  RunMeasures measures;
};

/// Brackets runs. Each thread has its own; the sums are shared.
class OperatorRuns {
 public:
  OperatorRuns(FrameworkProbe probe, size_t max_events, std::shared_ptr<KernelCollection> kernels = nullptr);

  /// Do runs that begin from now on tell `kernels` of themselves? Not at first.
  void tell_kernels(bool tell) { telling_ = tell; }

  class Bracket;

  /// Where runs of one operator begin. Remembers the node of the last run: most are inside the same operators each
  /// time.
  struct Place {
    explicit Place(uint32_t op) : op(op) {}
    const uint32_t op;  // in tree()
    std::atomic<OperatorTree::Node*> last{nullptr};
  };

  OperatorTree& tree() { return tree_; }
  const OperatorTree& tree() const { return tree_; }
  std::vector<RunEvent> events() const;  // the first ones, up to the maximum
  uint64_t dropped_events() const;
  /// Outermost runs whose allocations somebody else was told of.
  uint64_t unheard() const { return unheard_; }
  const FrameworkProbe& probe() const { return probe_; }
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

/// One run of an operator, begun before it and ended after it. Where it is not ended, the operator raised an exception.
class OperatorRuns::Bracket {
 public:
  Bracket() = default;
  ~Bracket();
  Bracket(const Bracket&) = delete;
  Bracket& operator=(const Bracket&) = delete;

  void begin(const std::shared_ptr<OperatorRuns>& runs, Place& place);
  /// The operator is done; what follows until end() is no part of it.
  void stop();
  /// Runs that began inside this one and did not end, failed.
  void end(int64_t operand_bytes = 0);

  int64_t input_bytes = 0;

 private:
  friend class OperatorRuns;
  std::shared_ptr<OperatorRuns> runs_;  // null: not open
  Stack* stack_ = nullptr;
  size_t depth_ = 0;
  uint64_t run_ = 0;
  int64_t stopped_ns_ = 0;
};

}  // namespace amanda::tools
