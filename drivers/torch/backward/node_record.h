// The owners of a node, shared by its hooks.
#pragma once

#include <c10/util/SmallVector.h>

#include <functional>
#include <optional>
#include <utility>

#include "amanda/base/mutex.h"
#include "amanda/base/thread_calls.h"
#include "backward/node_call.h"

namespace amanda::pytorch {

/// One node's record. It is part of a hook, and destroyed with the node.
class NodeRecord : NoCopy {
 public:
  using Owners = c10::SmallVector<Ownership, 1>;

  /// `here`: of the thread that creates the node, unless it is a leaf's. `first`: an Ownership, or its members.
  template <class... First>
  explicit NodeRecord(const ThreadCalls& here, First&&... first) : maker_(&here) {
    owners_.emplace_back(Ownership{std::forward<First>(first)...});
  }

  /// Returns false if the tools that saw this owner already see the node, through another owner.
  bool add(Ownership owner);
  bool claim_post_hook();  // true once
  /// For a leaf's node that outlives its graphs: where the graph of the first user is gone, its runs are now those of
  /// this user, which is at the same place. `owners`: the current ones.
  void renew_run(const Owners& owners, const Ownership& user, const std::function<RunStatePtr()>& run);
  /// For a leaf's node: its plan may be from before its analyses, or before an action was removed. This user, at the
  /// same place, has the current plan.
  void renew_plan(const Ownership& user);

  Owners owners() const;
  /// The owners of a node that now runs, or gets owners, on this thread. Null if other threads may change them.
  const Owners* own_owners(const ThreadCalls& here, bool is_leafs) const {
    return is_leafs || &here != maker_ ? nullptr : &owners_;
  }
  /// The owner, if there is only one, of a node that now runs on this thread; otherwise null. Valid while the node
  /// runs. `copy`: room for it, if other threads may change it meanwhile.
  const Ownership* only_owner(const ThreadCalls& here, bool is_leafs, std::optional<Ownership>& copy) const {
    const Owners* owners = own_owners(here, is_leafs);
    if (!owners) return shared_only_owner(copy);
    return owners->size() == 1 ? &owners->front() : nullptr;
  }

 private:
  // A leaf's node can get owners while it runs on another thread; any other node gets them on the thread that created
  // it, and not while it runs there. Records share a few locks, to stay small: every node that is seen has a record.
  Mutex& mutex() const;
  const Ownership* shared_only_owner(std::optional<Ownership>& copy) const;

  // Only compared. When the thread has ended, another one may have its address: that one never adds an owner.
  const ThreadCalls* const maker_;
  Owners owners_;  // inner operators before outer ones
  bool has_post_hook_ = false;
};

/// Existing ownership is kept: drops the tools that already see the node. Returns false if no other tool is left.
bool restrict_to_new_tools(Ownership& owner, const NodeRecord::Owners& owners);

}  // namespace amanda::pytorch
