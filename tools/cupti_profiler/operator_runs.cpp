#include "cupti_profiler/operator_runs.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "clock.h"

namespace amanda::tools {

struct OperatorRuns::OpenRun {
  OperatorTree::Node* node;
  uint64_t id;
  int64_t entered_ns, started_ns;
  int64_t inside_ns = 0;    // in operators inside, including the cost of measuring them
  int64_t overhead_ns = 0;  // of that: the cost of measuring
  bool pushed = false;
  RunMeasures measures{};
};

// Of one thread.
struct OperatorRuns::Stack {
  const uint32_t thread = static_cast<uint32_t>(syscall(SYS_gettid));
  std::vector<OpenRun> runs;  // outermost first
  void* listener = nullptr;
  std::weak_ptr<void> owner;
};

namespace {
thread_local void* listening = nullptr;  // the Stack whose innermost run receives allocations
}

OperatorRuns::OperatorRuns(FrameworkProbe probe, size_t max_events, std::shared_ptr<KernelCollection> kernels)
    : probe_(probe), max_events_(max_events), kernels_(std::move(kernels)) {}

OperatorRuns::Stack& OperatorRuns::stack() {
  thread_local std::vector<std::pair<OperatorRuns*, std::unique_ptr<Stack>>> stacks;
  for (const auto& [owner, stack] : stacks) {
    if (owner == this && !stack->owner.expired()) return *stack;
  }
  std::erase_if(stacks, [](const auto& entry) { return entry.second->owner.expired(); });
  stacks.emplace_back(this, std::make_unique<Stack>());
  stacks.back().second->owner = alive_;
  return *stacks.back().second;
}

void OperatorRuns::heard(int64_t bytes, bool on_host) noexcept {
  auto* stack = static_cast<Stack*>(listening);
  if (!stack || stack->runs.empty()) return;
  RunMeasures& sums = stack->runs.back().measures;
  (bytes > 0 ? (on_host ? sums.allocated_bytes : sums.device_allocated_bytes)
             : (on_host ? sums.freed_bytes : sums.device_freed_bytes)) += std::abs(bytes);
}

void OperatorRuns::begin(Stack& stack, Place& place, Bracket& bracket, int64_t now) {
  if (stack.runs.empty() && probe_.listen) {
    stack.listener = probe_.listen(&OperatorRuns::heard);
    if (stack.listener) {
      listening = &stack;
    } else {
      unheard_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  const OperatorTree::Node& parent = stack.runs.empty() ? tree_.root() : *stack.runs.back().node;
  OperatorTree::Node* node = place.last.load(std::memory_order_acquire);
  if (!node || node->parent != &parent) {
    node = &tree_.child(parent, place.op);
    place.last.store(node, std::memory_order_release);
  }
  OpenRun run{.node = node, .id = run_id(node->index, ++numbers_), .entered_ns = now, .started_ns = now};
  bracket.depth_ = stack.runs.size();
  bracket.run_ = run.id;
  if (telling_) run.pushed = kernels_->push(run.id);
  run.started_ns = now_ns();
  stack.runs.push_back(run);
}

void OperatorRuns::end(Stack& stack, size_t depth, int64_t now, int64_t operand_bytes) {
  while (stack.runs.size() > depth + 1) {  // left by an exception that was caught
    stack.runs.back().node->add_failed();
    close_top(stack);
  }
  OpenRun run = stack.runs.back();
  close_top(stack);
  RunMeasures& measures = run.measures;
  measures.inclusive_ns = std::max<int64_t>(now - run.started_ns - run.overhead_ns, 0);
  measures.exclusive_ns = std::max<int64_t>(now - run.started_ns - run.inside_ns, 0);
  measures.operand_bytes = operand_bytes;
  run.node->add(measures);
  {
    std::lock_guard lock(mutex_);
    if (events_.size() < max_events_) {
      events_.push_back({run.id, run.node->index, stack.thread, run.started_ns, now, measures});
    } else {
      ++dropped_events_;
    }
  }
  if (stack.runs.empty()) return;
  OpenRun& outer = stack.runs.back();
  const int64_t whole = now_ns() - run.entered_ns;
  outer.inside_ns += whole;
  outer.overhead_ns += whole - measures.inclusive_ns;
}

// Closes the innermost run, however it ended. Its id is popped even if the collection has ended meanwhile: otherwise it
// would claim the kernels of the next collection.
void OperatorRuns::close_top(Stack& stack) {
  if (stack.runs.back().pushed) kernels_->pop();
  stack.runs.pop_back();
  if (!stack.runs.empty() || !stack.listener) return;
  listening = nullptr;
  probe_.unlisten(std::exchange(stack.listener, nullptr));
}

// Drops a run that was destroyed without ending. For a backward operator that may happen after others began; these stay
// open.
void OperatorRuns::forget(Stack& stack, uint64_t id) {
  auto& runs = stack.runs;
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const OpenRun& run) { return run.id == id; });
  if (found == runs.end()) return;
  found->node->add_failed();
  std::vector<OpenRun> later(found + 1, runs.end());
  while (runs.size() > static_cast<size_t>(found - runs.begin()) + 1) {
    if (runs.back().pushed) kernels_->pop();
    runs.pop_back();
  }
  if (later.empty()) return close_top(stack);
  if (runs.back().pushed) kernels_->pop();
  runs.pop_back();
  for (OpenRun& run : later) {
    if (run.pushed) run.pushed = kernels_->push(run.id);
    runs.push_back(run);
  }
}

std::vector<RunEvent> OperatorRuns::events() const {
  std::lock_guard lock(mutex_);
  return events_;
}

uint64_t OperatorRuns::dropped_events() const {
  std::lock_guard lock(mutex_);
  return dropped_events_;
}

void OperatorRuns::reset() {
  tree_.reset();
  unheard_ = 0;
  std::lock_guard lock(mutex_);
  events_.clear();
  dropped_events_ = 0;
}

OperatorRuns::Bracket::~Bracket() {
  if (runs_ && &runs_->stack() == stack_) runs_->forget(*stack_, run_);
}

void OperatorRuns::Bracket::begin(const std::shared_ptr<OperatorRuns>& runs, Place& place) {
  const int64_t now = now_ns();
  stack_ = &runs->stack();
  runs->begin(*stack_, place, *this, now);
  runs_ = runs;
}

void OperatorRuns::Bracket::stop() { stopped_ns_ = now_ns(); }

void OperatorRuns::Bracket::end(int64_t operand_bytes) {
  const std::shared_ptr<OperatorRuns> runs = std::exchange(runs_, nullptr);
  if (!runs || &runs->stack() != stack_) return;
  auto& open = stack_->runs;
  while (depth_ > 0 && (depth_ >= open.size() || open[depth_].id != run_)) --depth_;  // a run below it was dropped
  if (depth_ < open.size() && open[depth_].id == run_) runs->end(*stack_, depth_, stopped_ns_, operand_bytes);
}

}  // namespace amanda::tools
