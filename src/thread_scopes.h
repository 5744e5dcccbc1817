// What is open on this thread: entered scopes, the stack that they make, and the switches.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "scope_stack.h"
#include "thread_calls.h"

namespace amanda {

struct ScopeEntry {
  uint64_t id;
  std::shared_ptr<ScopeState> state;
  std::shared_ptr<const void> open;  // ScopeState::opened()
};

/// One kind of switch: those that are turned. They may be put back in any order, as two asyncio tasks do.
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
  uint64_t told = 0;                                   // the tools' generation when the drivers were told last
  std::vector<std::shared_ptr<const void>> of_parent;  // a forked child's: to be let go of once Python runs there

  bool is_active(const Tool* tool) const;

  /// Makes the stack fit the entries and switches, and tells the drivers. If that fails, `undo` takes back what
  /// changed, and all is as it was.
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
    CallFrame::keep(std::move(other));  // last: letting go may run a tool's code
  }

  /// The same where something ended: it stays ended, whatever fails.
  void ended();
  /// Tells the drivers: all of them, whatever one throws. Then throws the first error.
  void tell();
  void tell_quietly() noexcept;

 private:
  std::shared_ptr<ScopeStack> make_stack() const;
};

/// How often this process, or one it comes from, was forked.
extern std::atomic<uint64_t> forks;

}  // namespace amanda
