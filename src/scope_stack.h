// The scopes open on a thread, as one immutable list of active tools, and the tables derived from it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "amanda/base/mutex.h"
#include "amanda/base/thread_calls.h"
#include "amanda/driver/backend.h"
#include "scope_state.h"
#include "visibility.h"
#include "want_table.h"

namespace amanda {

class Toolset;
using ToolsetPtr = std::shared_ptr<const Toolset>;

inline constexpr size_t kMaxBackends = 16;

/// Entered scopes, outermost first. It does not keep them alive; its users do, see ScopeStackUse.
class ScopeStack {
 public:
  /// Tools of `previous` keep their bits, because threads may be inside their operators. Throws `Error` above 64 tools.
  ScopeStack(std::vector<ScopeState*> scopes, bool cache_enabled, const ScopeStack* previous);
  ~ScopeStack();

  const std::vector<ScopeState*>& scopes() const { return scopes_; }
  bool is_made_of(const std::vector<ScopeState*>& scopes, bool cache_enabled) const;
  bool contains(const Tool* tool) const;
  bool cache_enabled() const { return cache_enabled_; }
  uint64_t serial() const { return serial_; }  // never used again

  /// Derived from the tools' registrations; rebuilt when a tool changes.
  struct Tables {
    mutable std::atomic<uint64_t> generation;  // the last one for which they are known to be valid
    std::vector<ActiveTool> tools;             // in the order they run
    ToolBits askers = 0;                       // tools with filters of their own
    ToolBits nested_askers = 0;
    bool any_on_demand = false;
    bool any_wants_all = false;
    bool any_modules = false;                           // some routine asks for operators in certain modules only
    mutable std::array<WantTable, kMaxBackends> wants;  // by backend
  };
  /// Valid until the next call on this thread; share ownership to keep them while tools are called.
  const Tables& tables() const {
    const Tables* current = tables_.load(std::memory_order_acquire);
    return current->generation == tool_generation_now() ? *current : *rebuild();
  }
  std::shared_ptr<const Tables> share_tables() const;
  Visibility visibility(const Backend& backend, OpType type, ToolBits inside) const;
  /// The visibility of a call: `inside` are the tools inside one of their operators.
  Visibility visibility(const OpSite& site, ToolBits inside) const {
    if (site.phase() == Phase::kForward) return visibility(site.backend(), site.type(), inside);
    return site.subscription() ? visibility(*site.subscription()) : Visibility{};
  }
  /// The visibility of a backward operator: the tools that saw its forward operator and are active here, in the same
  /// scope.
  Visibility visibility(const Subscription& subscription) const;
  SubscriptionPtr subscription(const Visibility& seen) const;
  /// True if a tool may see an operator inside another one, with these tools inside that one.
  bool observes_inner(ToolBits inside) const;

  void count_hit(const ThreadCalls& here) const {
    for (ScopeState* scope : scopes_) scope->hits.add(here);
  }

  /// The toolset of this stack for a graph, now; `inside` as above.
  ToolsetPtr toolset(ToolBits inside) const;

  // Plans may be dropped at any time; they are merged again from records.
  struct PlanKey {
    OpId id;
    Visibility seen;
    bool operator==(const PlanKey&) const = default;
  };
  PlanPtr find_plan(const PlanKey& key, uint64_t generation) const;
  void keep_plan(const PlanKey& key, uint64_t generation, PlanPtr plan) const;

 private:
  static uint64_t tool_generation_now();
  std::shared_ptr<const Tables> rebuild() const;
  std::shared_ptr<const Tables> rebuild_locked() const;
  std::shared_ptr<Tables> make_tables(uint64_t generation) const;

  std::vector<ScopeState*> scopes_;
  std::vector<uint64_t> serials_;
  bool cache_enabled_;
  uint64_t serial_;
  std::vector<ActiveTool> tools_;  // as entered; registrations not filled in
  mutable Mutex mutex_;
  mutable std::atomic<const Tables*> tables_{nullptr};
  // The last one is current. Other threads may still read older ones; they are released when no thread uses the stack.
  mutable std::vector<std::shared_ptr<const Tables>> all_tables_;
  friend class ScopeStackUse;
  mutable std::atomic<size_t> uses_{0};
  struct KeyHash {
    size_t operator()(const PlanKey& key) const {
      return (key.id + key.seen.backend) ^ key.seen.outer * 0x9E3779B97F4A7C15ull;
    }
  };
  mutable std::unordered_map<PlanKey, PlanPtr, KeyHash> plans_;
  mutable uint64_t plans_generation_ = 0;
  // The last toolset that was returned for no tool inside an operator, and the plans' generation for which it is valid.
  mutable ToolsetPtr toolset_;
  mutable uint64_t toolset_generation_ = 0;
  mutable std::vector<SubscriptionPtr> subscriptions_;  // one for each visibility of operators
};

}  // namespace amanda
