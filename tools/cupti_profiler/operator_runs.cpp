#include "cupti_profiler/operator_runs.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <utility>

#include "clock.h"

namespace amanda::tools {
namespace {

std::atomic<uint64_t> serials{0}, numbers{0};  // numbers: of runs, in this process

}  // namespace

// The time that a bracket takes without its operator: see NOTE [what a run costs].
class OperatorRuns::OwnTime {
 public:
  /// True if it is to be measured in the run that begins.
  bool is_due() { return runs_++ % 16 == 0 || runs_ < 16; }
  void measured(int64_t ns) { least_ = std::min(least_, ns); }
  int64_t ns() const { return least_ == kUnknown ? 0 : least_; }

 private:
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

  uint32_t runs_ = 0;
  int64_t least_ = kUnknown;
};

struct OperatorRuns::OpenRun {
  OperatorTree::Node* node;
  uint64_t id;
  int64_t entered_ns;  // 0 if the bracket is not measured
  int64_t started_ns;
  int64_t inside_ns = 0;    // in operators inside, including the cost of measuring them
  int64_t overhead_ns = 0;  // of that: the cost of measuring
  bool pushed = false;
  RunMeasures measures{};
};

// The open runs of one thread.
struct OperatorRuns::Stack {
  explicit Stack(uint64_t owner) : owner(owner) {}

  uint64_t next_number() {
    constexpr uint64_t kBlock = 1024;
    if (number % kBlock == 0) number = numbers.fetch_add(kBlock, std::memory_order_relaxed);
    return ++number;
  }

  const uint64_t owner;  // its serial_
  const uint32_t thread = static_cast<uint32_t>(syscall(SYS_gettid));
  std::vector<OpenRun> runs;            // outermost first
  std::shared_ptr<OperatorRuns> alive;  // while there are any
  void* listener = nullptr;
  uint64_t number = 0;
  OwnTime own;
  RunBuffer ended;
  std::atomic<bool> abandoned{false};  // by the thread or by the owner, which is gone
};

// One for each OperatorRuns that the thread has used.
struct OperatorRuns::ThreadStacks {
  static ThreadStacks& here() {
    thread_local ThreadStacks stacks;
    return stacks;
  }
  ~ThreadStacks();

  std::vector<std::shared_ptr<Stack>> all;
};

namespace {
// Needs no constructor, so that finding it costs little.
struct ThisThread {
  void* recent;     // the Stack that was used last
  void* listening;  // the Stack whose innermost run receives allocations
};
constinit thread_local ThisThread this_thread{nullptr, nullptr};
}  // namespace

OperatorRuns::ThreadStacks::~ThreadStacks() {
  this_thread = {};
  for (const std::shared_ptr<Stack>& stack : all) {
    stack->alive = nullptr;
    stack->abandoned = true;
  }
}

OperatorRuns::OperatorRuns(FrameworkProbe probe, size_t max_events, std::shared_ptr<KernelCollection> kernels)
    : serial_(++serials), probe_(probe), max_events_(max_events), kernels_(std::move(kernels)) {}

OperatorRuns::~OperatorRuns() {
  for (const std::shared_ptr<Stack>& stack : stacks_) stack->abandoned = true;
}

// ---- the threads' stacks --------------------------------------------------------------------------------------------

OperatorRuns::Stack* OperatorRuns::recent_stack() { return static_cast<Stack*>(this_thread.recent); }

OperatorRuns::Stack& OperatorRuns::stack() {
  Stack* recent = recent_stack();
  return recent && recent->owner == serial_ ? *recent : find_stack();
}

OperatorRuns::Stack& OperatorRuns::find_stack() {
  auto& mine = ThreadStacks::here().all;
  auto found = std::find_if(mine.begin(), mine.end(), [&](const auto& stack) { return stack->owner == serial_; });
  if (found == mine.end()) {
    std::erase_if(mine, [](const auto& stack) { return stack->abandoned.load(); });
    found = mine.insert(mine.end(), std::make_shared<Stack>(serial_));
    std::lock_guard lock(mutex_);
    std::erase_if(stacks_, [&](const auto& stack) {
      if (!stack->abandoned) return false;
      stack->ended.take([&](const RunBuffer::Run& run) { add(run); });
      return true;
    });
    stacks_.push_back(*found);
  }
  this_thread.recent = found->get();
  return **found;
}

void OperatorRuns::heard(int64_t bytes, bool on_host) noexcept {
  auto* stack = static_cast<Stack*>(this_thread.listening);
  if (!stack || stack->runs.empty()) return;
  RunMeasures& sums = stack->runs.back().measures;
  (bytes > 0 ? (on_host ? sums.allocated_bytes : sums.device_allocated_bytes)
             : (on_host ? sums.freed_bytes : sums.device_freed_bytes)) += std::abs(bytes);
}

// ---- runs -----------------------------------------------------------------------------------------------------------

void OperatorRuns::begin(Stack& stack, Site& site, Bracket& bracket) {
  const int64_t entered_ns = stack.own.is_due() ? now_ns() : 0;
  if (stack.runs.empty() && probe_.listen) {
    stack.listener = probe_.listen(&OperatorRuns::heard);
    if (stack.listener) {
      this_thread.listening = &stack;
    } else {
      unheard_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  const OperatorTree::Node& parent = stack.runs.empty() ? tree_.root() : *stack.runs.back().node;
  OperatorTree::Node* node = site.last.load(std::memory_order_acquire);
  if (!node || node->parent != &parent) {
    node = &tree_.child(parent, site.op);
    site.last.store(node, std::memory_order_release);
  }
  bracket.depth_ = stack.runs.size();
  bracket.run_ = run_id(node->index, stack.next_number());
  const bool pushed = telling_ && kernels_->push(bracket.run_);
  OpenRun& run = stack.runs.emplace_back(OpenRun{node, bracket.run_, entered_ns, 0});
  run.pushed = pushed;
  run.started_ns = now_ns();
}

void OperatorRuns::end(Stack& stack, size_t depth, int64_t now, int64_t operand_bytes) {
  while (stack.runs.size() > depth + 1) {  // left by an exception that was caught
    stack.runs.back().node->add_failed();
    close_top(stack);
  }
  OpenRun& run = stack.runs.back();
  const int64_t entered_ns = run.entered_ns, lasted_ns = now - run.started_ns;
  RunMeasures& measures = run.measures;
  measures.inclusive_ns = std::max<int64_t>(lasted_ns - run.overhead_ns, 0);
  measures.exclusive_ns = std::max<int64_t>(lasted_ns - run.inside_ns, 0);
  measures.operand_bytes = operand_bytes;
  const RunBuffer::Run ended{run.node, {run.id, run.node->index, stack.thread, run.started_ns, now, measures}};
  if (!stack.ended.add(ended)) {
    collect(stack.ended);
    stack.ended.add(ended);
  }
  close_top(stack);
  const int64_t whole_ns = entered_ns ? now_ns() - entered_ns : lasted_ns + stack.own.ns();
  if (entered_ns) stack.own.measured(whole_ns - lasted_ns);
  if (stack.runs.empty()) return;
  OpenRun& outer = stack.runs.back();
  outer.inside_ns += whole_ns;
  outer.overhead_ns += whole_ns - ended.event.measures.inclusive_ns;
}

// Closes the innermost run, however it ended. Its id is popped even if the collection has ended meanwhile: otherwise it
// would claim the kernels of the next collection.
void OperatorRuns::close_top(Stack& stack) {
  if (stack.runs.back().pushed) kernels_->pop();
  stack.runs.pop_back();
  if (!stack.runs.empty() || !stack.listener) return;
  this_thread.listening = nullptr;
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

// ---- what they add up to --------------------------------------------------------------------------------------------

// The mutex is held.
void OperatorRuns::add(const RunBuffer::Run& run) {
  run.node->add(run.event.measures);
  if (events_.size() < max_events_) {
    events_.push_back(run.event);
  } else {
    ++dropped_events_;
  }
}

// The mutex is held.
template <class Fn>
void OperatorRuns::take_all(const Fn& fn) {
  for (const std::shared_ptr<Stack>& stack : stacks_) stack->ended.take(fn);
}

void OperatorRuns::collect(RunBuffer& ended) {
  std::lock_guard lock(mutex_);
  ended.take([&](const RunBuffer::Run& run) { add(run); });
}

OperatorTree& OperatorRuns::tree() {
  std::lock_guard lock(mutex_);
  take_all([&](const RunBuffer::Run& run) { add(run); });
  return tree_;
}

std::vector<RunEvent> OperatorRuns::events() {
  std::lock_guard lock(mutex_);
  take_all([&](const RunBuffer::Run& run) { add(run); });
  return events_;
}

uint64_t OperatorRuns::dropped_events() {
  std::lock_guard lock(mutex_);
  take_all([&](const RunBuffer::Run& run) { add(run); });
  return dropped_events_;
}

void OperatorRuns::reset() {
  std::lock_guard lock(mutex_);
  take_all([](const RunBuffer::Run&) {});
  tree_.reset();
  unheard_ = 0;
  events_.clear();
  dropped_events_ = 0;
}

// ---- one of them ----------------------------------------------------------------------------------------------------

bool OperatorRuns::Bracket::is_of_this_thread(const Stack* stack) {
  if (stack == recent_stack()) return true;
  const auto& mine = ThreadStacks::here().all;
  return std::any_of(mine.begin(), mine.end(), [&](const auto& one) { return one.get() == stack; });
}

OperatorRuns::Bracket::~Bracket() {
  if (!stack_ || !is_of_this_thread(stack_) || !stack_->alive) return;
  const std::shared_ptr<OperatorRuns> runs = stack_->alive;
  runs->forget(*stack_, run_);
  if (stack_->runs.empty()) stack_->alive = nullptr;
}

void OperatorRuns::Bracket::begin(const std::shared_ptr<OperatorRuns>& runs, Site& site) {
  Stack& stack = runs->stack();
  if (!stack.alive) stack.alive = runs;
  runs->begin(stack, site, *this);
  stack_ = &stack;
}

void OperatorRuns::Bracket::stop() { stopped_ns_ = now_ns(); }

void OperatorRuns::Bracket::end(int64_t operand_bytes) {
  Stack* stack = std::exchange(stack_, nullptr);
  if (!stack || !is_of_this_thread(stack) || !stack->alive) return;
  auto& open = stack->runs;
  while (depth_ > 0 && (depth_ >= open.size() || open[depth_].id != run_)) --depth_;  // a run below it was dropped
  if (depth_ >= open.size() || open[depth_].id != run_) return;
  OperatorRuns& runs = *stack->alive;
  runs.end(*stack, depth_, stopped_ns_, operand_bytes);
  if (open.empty()) stack->alive = nullptr;
}

}  // namespace amanda::tools
