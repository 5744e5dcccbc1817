// What a scope's coverage report counts: each call that the dispatcher is asked for, and whether tools were shown it.
#pragma once

#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "amanda/engine.h"
#include "amanda/mutex.h"
#include "base/op_types.h"

namespace amanda::pytorch {

// NOTE: [coverage counters]
// While a scope counts, a RecordFunction callback of its thread is told of each call, before any kernel runs, whether
// or not a key of ours is on; it notes what state the thread is in. The kernels and hooks then say, of the innermost
// call, which tools the core is about to show it to. What nobody has been shown when the call ends was skipped, for the
// first reason that applies. So no call can be missed by both: the sum of the columns is RecordFunction's own count.

/// Why no tool of a scope was shown a call. In python/amanda/coverage/reasons.py each has its sentence.
enum class Skipped : uint8_t {
  // What the thread is in, whoever asks.
  kOwn,       // called by this driver, for a tool
  kRoutine,   // called by a tool
  kOpaque,    // inside a compiled function
  kOff,       // instrumentation is switched off
  kThread,    // another thread than the scope's
  kNoise,     // bookkeeping of the framework
  kBackward,  // a backward operator is made of it
  kTraced,    // somebody records the program
  // What the scope's tools ask for.
  kUnasked,   // no tool asks for it
  kUnowned,   // a backward operator whose forward operator no tool saw
  kInner,     // inside an operator that a tool sees
  kCallback,  // the engine calls it, outside of any node
  kLost,      // our keys were off, for none of these reasons
  kCount,
};
inline constexpr size_t kSkips = static_cast<size_t>(Skipped::kCount);
inline constexpr std::array<const char*, kSkips> kSkipNames = {"own",   "routine",  "opaque", "off",     "thread",
                                                               "noise", "backward", "traced", "unasked", "unowned",
                                                               "inner", "callback", "lost"};

/// The counts of one scope, over all times it is entered, on any thread.
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
  /// `record`: of a forward operator; null: of the node of that name. `why`: none if it was seen.
  void count(const OpRecord* record, const std::string& node, std::optional<Skipped> why);

 private:
  const Engine::Tools tools_;
  mutable Mutex mutex_;
  std::unordered_map<const OpRecord*, Counts> forward_;
  std::unordered_map<std::string, Counts> backward_;
};

/// How many are open, on all threads: what follows is called only if some are.
inline std::atomic<size_t> open_counters{0};
inline bool counts_calls() { return open_counters.load(std::memory_order_relaxed) != 0; }

/// The core is about to be told of a forward operator, or of a node (`record`: null).
void note_shown(const ScopeStack& scopes, const OpSite& site, const OpRecord* record);
/// A forward operator was caught, and is not for tools to see.
void note_refused(const OpRecord& record);

/// While it exists, what this thread calls is the driver's own work.
class OwnWork {
 public:
  OwnWork();
  ~OwnWork();
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;
};

}  // namespace amanda::pytorch
