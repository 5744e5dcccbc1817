// The data of a scope object: its tools in order, and a record of each operator that they analyzed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "amanda/mutex.h"
#include "amanda/op_context.h"
#include "amanda/scope_options.h"
#include "amanda/unmatched.h"
#include "hit_counter.h"
#include "plan.h"

namespace amanda {

class ScopeStack;
struct ContextSession;

/// One operator in one scope: the context that tools share, and the actions that each analysis scheduled.
struct Record {
  struct PerRegistration {
    bool done = false;
    bool saw_symbols = false;  // analyzed with a graph's symbols: an eager call is analyzed again
    std::vector<ScheduledPtr> actions;

    bool holds(bool symbols) const { return done && (symbols || !saw_symbols); }
  };

  ~Record();  // retires the routines
  PerRegistration& of(const Tool* tool, size_t registration);
  bool is_empty() const;  // no action, no key: safe to evict
  /// In the order in which they run, without those that were removed; `order`: of the tools; `running`: an analysis
  /// whose results are not stored yet. Under the scope's lock: a record that goes removes its actions one by one.
  std::vector<ScheduledPtr> scheduled(const std::vector<Tool*>& order, const ContextSession* running = nullptr) const;

  OpContext context;
  std::map<const Tool*, std::vector<PerRegistration>> tools;
  std::thread::id analysed_by;  // while an analysis runs
  bool used = false;            // looked up since it was last considered for eviction
  uint64_t number = 0;          // counts the scope's records
};
using RecordPtr = std::shared_ptr<Record>;

/// Two drivers may use the same id for different operators; two regimes of one framework share ids.
struct RecordKey {
  size_t ids;  // Backend::ids()
  OpId id;
  bool operator==(const RecordKey&) const = default;
};
struct RecordKeyHash {
  size_t operator()(const RecordKey& key) const { return key.id + key.ids; }
};

class ScopeState : public std::enable_shared_from_this<ScopeState> {
 public:
  ScopeState(std::vector<Tool*> tools, ScopeOptions options);

  const std::vector<Tool*>& tools() const { return tools_; }
  uint64_t serial() const { return serial_; }  // never used again
  /// True if the scope continues after this failure of a tool. Without an exception the thread is ending (pthread_exit,
  /// or the interpreter's end for a daemon thread), and must be allowed to end.
  bool survives(const std::exception_ptr& error) const { return error && options_.on_error == OnError::kDisable; }

  /// The record of an operator; `make` creates a missing one.
  RecordPtr record(RecordKey key, const std::function<RecordPtr()>& make);
  RecordPtr find(RecordKey key);
  /// Calls `fn` on each record, under the scope's lock.
  void each_record(const std::function<void(Record&)>& fn);
  void clear(OpId id);  // of every driver

  /// Guards the inside of all records. Never held while a callback runs.
  Mutex& mutex() { return mutex_; }
  std::condition_variable& analysed() { return analysed_; }

  /// Is open as long as the result lives. Any thread; the counters begin again when it was open nowhere.
  std::shared_ptr<const void> opened();
  uint64_t entries() const { return entries_.load(std::memory_order_relaxed); }  // the number of times it was opened
  /// The run counter of the forward operator with this key. It outlives cache_clear(). Without an id, it belongs to one
  /// execution.
  std::shared_ptr<RunCounter> run_counter(RecordKey key);

  std::shared_ptr<ToolStatus> status(const Tool* tool) const { return statuses_.at(tool); }
  bool stopped(const Tool* tool) const;
  /// on_error="disable": stops the tool and its dependents, logs one line, and calls their on_disable(), with the
  /// operators of `backend` isolated as in an analysis.
  void stop(Backend& backend, Tool& failed, const std::string& where, const std::exception_ptr& error);

  /// The stack of these scopes, with this one innermost. It is kept so that entering again finds its plans.
  std::shared_ptr<ScopeStack> kept_stack(const std::vector<ScopeState*>& scopes, bool cache_enabled);
  const std::shared_ptr<const void>& tools_owner() const { return options_.tools_owner; }

  /// A place of a forward operator of this type is analysed for the first time.
  void note_place(const OpInfo& type);
  std::vector<std::pair<std::string, size_t>> analysed_types();
  /// A routine's filter met an operator of its types, in a module that it asks for or not.
  void note_filter(const Tool* tool, size_t registration, bool in_modules, const std::string& module_path);
  /// True if a routine's filters have matched nothing so far.
  bool has_unmatched();
  /// The routines of `tool` whose filters have matched nothing so far, each once for the life of the tool.
  std::vector<Unmatched> take_unmatched(Tool& tool);

  HitCounter hits;
  std::atomic<uint64_t> misses{0};
  std::atomic<uint64_t> clears{0};  // calls of clear()
  CacheInfo cache_info();

 private:
  void queue_for_eviction(RecordKey key);
  RecordPtr evict_unused();
  static void after_fork(void* state);
  /// True if the routine has no filter, or its filter has matched something that ran. Call this under the lock.
  bool has_matched(const Tool& tool, size_t registration, const InstOptions& options) const;
  bool has_work(const Tool& tool);  // true if a routine of it matched, other than those on demand
  /// True if there is other work in its place: of its own, of a tool that it depends on, or of one that depends on it.
  bool may_be_idle(const Tool& tool);
  std::vector<Unmatched> unmatched(Tool& tool);

  std::vector<Tool*> tools_;
  ScopeOptions options_;
  uint64_t serial_;
  Mutex mutex_{&after_fork, this};
  std::condition_variable analysed_;
  std::unordered_map<RecordKey, RecordPtr, RecordKeyHash> records_;
  /// Records in the order in which they are considered for eviction. A record that is no longer empty at that time
  /// leaves the queue.
  std::deque<RecordKey> evictable_;
  size_t queued_ = 0;  // in total, ever
  std::weak_ptr<const void> open_;
  std::atomic<uint64_t> entries_{0};
  std::unordered_map<RecordKey, std::shared_ptr<RunCounter>, RecordKeyHash> counters_;
  size_t next_sweep_ = 1024;
  uint64_t numbered_ = 0;
  std::map<const Tool*, std::shared_ptr<ToolStatus>> statuses_;
  struct FilterUse {
    bool matched = false;
    std::set<std::string> elsewhere;  // paths of modules that it does not ask for, unless it matched
  };
  std::map<std::pair<const Tool*, size_t>, FilterUse> filters_;  // of routines whose types of operators were met
  std::map<const OpInfo*, size_t> places_;
  std::vector<std::shared_ptr<ScopeStack>> stacks_;  // they hold scopes by plain pointer: no cycle
};

/// The text of an exception, for the log.
std::string describe(const std::exception_ptr& error);

}  // namespace amanda
