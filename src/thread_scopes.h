// This thread's entered scopes, the stack that they form, and its switches.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "amanda/base/thread_calls.h"
#include "scope_stack.h"

namespace amanda {

struct ScopeEntry {
  uint64_t id;
  std::shared_ptr<ScopeState> state;
  std::shared_ptr<const void> open;  // ScopeState::opened()
};

/// The switches of one kind that are in force. They may be restored in any order, as two asyncio tasks do.
class Turns {
 public:
  bool on() const { return turns_.empty() || turns_.back().on; }
  uint64_t turn(bool on) {
    turns_.push_back({++last_, on});
    return last_;
  }
  void put_back(uint64_t id) {
    std::erase_if(turns_, [id](const Turn& turn) { return turn.id == id; });
  }

 private:
  struct Turn {
    uint64_t id;
    bool on;
  };
  std::vector<Turn> turns_;
  uint64_t last_ = 0;
};

struct ThreadScopes {
  static ThreadScopes& current();
  ~ThreadScopes();

  std::vector<ScopeEntry> entries;  // outermost first
  std::shared_ptr<ScopeStack> stack;
  Turns instrumentation, cache;
  uint64_t generation = 0;                             // the tools' generation at the last switch_to()
  std::vector<std::shared_ptr<const void>> of_parent;  // in a forked child: released once Python runs there

  bool is_active(const Tool* tool) const;

  /// Updates the stack to the entries and switches, and calls switch_to() of the drivers. If that fails, `undo` reverts
  /// the change.
  template <class Undo>
  void changed(const Undo& undo) {
    std::shared_ptr<ScopeStack> other;
    try {
      other = make_stack();
      stack.swap(other);
      try {
        tell();
      } catch (...) {
        stack.swap(other);
        throw;
      }
    } catch (...) {
      undo();
      tell_quietly();
      throw;
    }
    CallFrame::keep(std::move(other));  // last: releasing may run a tool's code
  }

  /// The same after a scope or a switch ended; a failure does not revert that.
  void ended();
  /// Calls switch_to() of all drivers, even if one throws. Then throws the first error.
  void tell();
  void tell_quietly() noexcept;

 private:
  std::shared_ptr<ScopeStack> make_stack() const;
};

/// The number of forks that lead to this process.
extern std::atomic<uint64_t> forks;

}  // namespace amanda
