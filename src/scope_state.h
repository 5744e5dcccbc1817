// The data of a scope object: its tools in order, their records of operators, and the stacks it is part of.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "amanda/base/mutex.h"
#include "amanda/scope_options.h"
#include "filter_use.h"
#include "hit_counter.h"
#include "record_table.h"
#include "run_counters.h"

namespace amanda {

class ScopeStack;

class ScopeState : public std::enable_shared_from_this<ScopeState> {
 public:
  ScopeState(std::vector<Tool*> tools, ScopeOptions options);

  const std::vector<Tool*>& tools() const { return tools_; }
  const std::shared_ptr<const void>& tools_owner() const { return options_.tools_owner; }
  uint64_t serial() const { return serial_; }  // never used again
  /// True if the scope continues after this failure of a tool. Without an exception the thread is ending (pthread_exit,
  /// or the interpreter's end for a daemon thread), and must be allowed to end.
  bool survives(const std::exception_ptr& error) const { return error && options_.on_error == OnError::kDisable; }

  /// Is open as long as the result lives. Any thread; the counters begin again when it was open nowhere.
  std::shared_ptr<const void> opened();
  uint64_t entries() const { return entries_.load(std::memory_order_relaxed); }  // the number of times it was opened

  std::shared_ptr<ToolStatus> status(const Tool* tool) const { return statuses_.at(tool); }
  bool stopped(const Tool* tool) const;
  /// on_error="disable": stops the tool and its dependents, logs one line, and calls their on_disable(), with the
  /// operators of `backend` isolated as in an analysis.
  void stop(Backend& backend, Tool& failed, const std::string& where, const std::exception_ptr& error);

  /// The stack of these scopes, with this one innermost. It is kept so that entering again finds its plans.
  std::shared_ptr<ScopeStack> kept_stack(const std::vector<ScopeState*>& scopes, bool cache_enabled);

  RecordTable& records() { return records_; }
  FilterUse& filter_use() { return filter_use_; }
  RunCounters& run_counters() { return run_counters_; }
  void clear(OpId id);  // as RecordTable::take(); plans are merged again
  CacheInfo cache_info();
  /// True if an operator ran in the scope, or it was already reported that none did.
  bool is_settled() const { return misses != 0 || settled_; }
  bool settle() { return settled_.exchange(true); }  // returns whether it was

  HitCounter hits;
  std::atomic<uint64_t> misses{0};
  std::atomic<uint64_t> clears{0};  // calls of clear()

 private:
  std::vector<Tool*> tools_;
  ScopeOptions options_;
  uint64_t serial_;
  std::map<const Tool*, std::shared_ptr<ToolStatus>> statuses_;
  RecordTable records_;
  FilterUse filter_use_{tools_};
  RunCounters run_counters_;
  std::atomic<uint64_t> entries_{0};
  std::atomic<bool> settled_{false};
  Mutex mutex_;  // of what follows; the parts above have their own
  std::weak_ptr<const void> open_;
  std::vector<std::shared_ptr<ScopeStack>> stacks_;  // they hold scopes by plain pointer: no cycle
};

/// The text of an exception, for the log.
std::string describe(const std::exception_ptr& error);

}  // namespace amanda
