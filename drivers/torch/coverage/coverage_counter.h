// The counts of a scope's coverage report: each call of the dispatcher, and whether tools saw it.
#pragma once

#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "amanda/base/mutex.h"
#include "amanda/driver/engine.h"
#include "base/op_types.h"

namespace amanda::pytorch {

// NOTE: [coverage counters] While a scope counts, a RecordFunction callback on its thread receives each call before any
// kernel runs, whether our keys are on or off, and records the state of the thread. Our kernels and hooks then record,
// for the innermost call, which tools the core will show it to. A call that no tool has seen when it ends was skipped,
// for the first reason that applies. So no call can be missed: the sum of the columns is RecordFunction's own count.
// Another callback, on all threads, receives the calls of Python code on threads that have entered no scope.

/// The reason why no tool of a scope saw a call. python/amanda/core/coverage/reasons.py explains each in a sentence.
enum class Skipped : uint8_t {
  // Reasons that depend on the thread's state.
  kOwn,       // called by this driver, for a tool
  kRoutine,   // called by a tool
  kOpaque,    // inside a compiled function
  kOff,       // instrumentation is switched off
  kThread,    // another thread than the scope's, which has none
  kNoise,     // bookkeeping of the framework
  kBackward,  // it is a part of a backward operator
  kTraced,    // the program is being traced
  // Reasons that depend on what the scope's tools ask for.
  kUnasked,   // no tool asks for it
  kUnowned,   // a backward operator whose forward operator no tool saw
  kInner,     // inside an operator that a tool sees
  kCallback,  // the engine calls it, outside of any node
  kLost,      // our keys were off, for another reason
  kCount,
};
inline constexpr size_t kSkips = static_cast<size_t>(Skipped::kCount);
inline constexpr std::array<const char*, kSkips> kSkipNames = {"own",   "routine",  "opaque", "off",     "thread",
                                                               "noise", "backward", "traced", "unasked", "unowned",
                                                               "inner", "callback", "lost"};

/// The counts of one scope, over all its entries, on any thread.
class CoverageCounter : public std::enable_shared_from_this<CoverageCounter> {
 public:
  struct Counts {
    uint64_t seen = 0;
    std::array<uint64_t, kSkips> skipped{};
  };
  struct Row {
    std::string name;  // "aten::add", all overloads; "autograd::AddBackward0"
    bool backward;
    Counts counts;
  };

  /// `tools`: the scope's.
  explicit CoverageCounter(Engine::Tools tools) : tools_(std::move(tools)) {}

  /// Counts on this thread from now on, until as many calls of close().
  void open();
  void close();
  std::vector<Row> rows() const;

  const Engine::Tools& tools() const { return tools_; }
  /// Counts a call. `record`: the forward operator, or null for the node named `node`. `why`: empty if it was seen.
  void count(const OpRecord* record, const std::string& node, std::optional<Skipped> why);

 private:
  const Engine::Tools tools_;
  mutable Mutex mutex_;
  std::unordered_map<const OpRecord*, Counts> forward_;
  std::unordered_map<std::string, Counts> backward_;
};

/// The number of open counters on all threads. The functions below are called only if there are any.
inline std::atomic<size_t> open_counters{0};
inline bool counts_calls() { return open_counters.load(std::memory_order_relaxed) != 0; }

/// The core is about to see a forward operator, or a node (`record` is then null).
void note_shown(const ScopeStack& scopes, const OpSite& site, const OpRecord* record);
/// A forward operator was caught, and tools must not see it.
void note_refused(const OpRecord& record);

/// True if calls on this thread, which is in no scope, are the program's. Work of libraries on threads of their own,
/// such as the parts of a collective, belongs to operators that are counted.
bool is_threads_own_work();

/// While it exists, calls on this thread are the driver's own work.
class OwnWork : NoCopy {
 public:
  OwnWork();
  ~OwnWork();
};

}  // namespace amanda::pytorch
