// Where tools apply: scopes.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "amanda/backend.h"
#include "amanda/op_context.h"
#include "amanda/scope_options.h"
#include "amanda/switch.h"
#include "amanda/tool.h"
#include "amanda/unmatched.h"
#include "amanda/wait_hooks.h"

namespace amanda {

class ScopeState;

/// A handle on an instrumentation scope: tools, and the results of their analyses.
///
/// It covers the thread that enters it, while it is entered; it can be entered as often as one likes, on several
/// threads too.
class Scope {
 public:
  class Guard;

  template <class... Tools>
  explicit Scope(Tool& first, Tools&... rest) : Scope(std::vector<Tool*>{&first, &rest...}) {}
  /// Throws `Error` printing the cycle, if the tools' dependencies have one.
  explicit Scope(std::vector<Tool*> tools, ScopeOptions options = {});
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  [[nodiscard]] Guard enter();
  /// What Guard does, for bindings. `leave` takes out just that entry, in any order; on the entering thread only.
  uint64_t enter_entry();
  ///
  /// Returns what to warn of: see `Unmatched`. Nothing if the scope is left by an exception, or no operator ran.
  std::vector<Unmatched> leave_entry(uint64_t entry, const std::exception_ptr& error);

  const std::vector<Tool*>& tools() const;  // in the order they run, dependencies included
  CacheInfo cache_info() const;
  /// The types of forward operators that its tools analysed, "aten::add" for all overloads, with the number of places
  /// in the program; most first.
  std::vector<std::pair<std::string, size_t>> analysed_types() const;
  /// Forgets what was analysed, keys included: of one operator and its backward operators, or (0) of all.
  void cache_clear(OpId op_id = 0);
  /// Does a thread have it open, or work with it still?
  bool in_use() const { return state_.use_count() > 1; }
  /// Everything that analyses left behind, for a binding's garbage collector. `routine` and `context` must not block.
  void visit(const std::function<void(Routine&)>& routine, const std::function<void(OpContext&)>& context) const;

 private:
  std::shared_ptr<ScopeState> state_;
};

class Scope::Guard {
 public:
  explicit Guard(Scope& scope);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  Scope& scope_;
  uint64_t entry_;
  int exceptions_;
};

}  // namespace amanda
