// Scopes: the parts of a program to which tools apply.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "amanda/base/wait_hooks.h"
#include "amanda/op.h"
#include "amanda/op_context.h"
#include "amanda/scope_options.h"
#include "amanda/switch.h"
#include "amanda/tool.h"
#include "amanda/unmatched.h"

namespace amanda {

class ScopeState;

/// The remarks of a scope that was left.
struct ScopeRemarks {
  std::vector<Unmatched> unmatched;  ///< filters that matched nothing, although operators ran
  std::string elsewhere;  ///< no operator ran here, and this was the first one on a thread without scopes; or empty
};

/// A handle on an instrumentation scope: tools, and the results of their analyses.
///
/// It covers the thread that enters it, while it is entered. It may be entered any number of times, on several threads
/// too. The tools must outlive it, unless ScopeOptions::tools_owner keeps them alive.
class Scope {
 public:
  class Guard;

  /// A scope with these tools and default options. Throws as the constructor below.
  template <class... Tools>
  explicit Scope(Tool& first, Tools&... rest) : Scope(std::vector<Tool*>{&first, &rest...}) {}
  /// A scope with these tools, in this order except that dependencies run first. Throws `Error` that prints the cycle
  /// if the tools' dependencies have one.
  explicit Scope(std::vector<Tool*> tools, ScopeOptions options = {});
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// Enters the scope on this thread until the guard is destroyed. Throws what a tool's on_enter() throws; the scope is
  /// then not entered.
  [[nodiscard]] Guard enter();
  /// For bindings: enters the scope on this thread, and returns the number of this entry. Throws as enter().
  uint64_t enter_entry();
  /// For bindings: leaves one entry, on the thread that entered it, in any order. `error`: the exception that left the
  /// scope, or null.
  ///
  /// Returns what to warn of: nothing if the scope is left by an exception.
  ScopeRemarks leave_entry(uint64_t entry, const std::exception_ptr& error);

  /// The tools in the order they run, dependencies included.
  const std::vector<Tool*>& tools() const;
  /// Counters of the cache of analysis results. On any thread.
  CacheInfo cache_info() const;
  /// The types of forward operators that its tools analyzed, "aten::add" for all overloads, with the number of their
  /// places in the program; most first. On any thread.
  std::vector<std::pair<std::string, size_t>> analysed_types() const;
  /// Drops analysis results and keys: of one operator and its backward operators, or (0) of all. They are analyzed
  /// again. On any thread.
  void cache_clear(OpId op_id = 0);
  /// The actions that the analyses of this scope have scheduled. Operators come in the order in which they were first
  /// analyzed. The actions of one operator come in the order in which they run: before it, in its place (a later one
  /// wraps those before it), after it, then at its backward operators. The list is without removed actions, actions of
  /// tools that have stopped, and operators that have no id.
  ///
  /// On any thread, while the scope is entered or not, also from analyses and routines. Operators that run meanwhile
  /// may or may not be listed. This function costs nothing where it is not called.
  std::vector<ActionDescription> describe() const;
  /// The tools that run no more in this scope, because one of their routines or of those they depend on failed under
  /// `OnError::kDisable`. On any thread.
  std::vector<Tool*> stopped_tools() const;
  /// True if the scope is entered on any thread, or still in use by one. On any thread.
  bool in_use() const { return state_.use_count() > 1; }
  /// For a binding's garbage collector: visits all routines and contexts that analyses left behind. `routine` and
  /// `context` must not block.
  void visit(const std::function<void(Routine&)>& routine, const std::function<void(OpContext&)>& context) const;

 private:
  std::shared_ptr<ScopeState> state_;
};

/// Keeps a scope entered, on the thread that created the guard; the destructor leaves it there.
class Scope::Guard {
 public:
  /// Enters the scope, which must outlive the guard. Throws as Scope::enter().
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
