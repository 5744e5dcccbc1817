// The owners of a node, shared by its hooks.
#pragma once

#include <c10/util/SmallVector.h>

#include "amanda/mutex.h"
#include "backward/node_call.h"

namespace amanda::pytorch {

/// One node's record. Its hook objects share it, and are destroyed with the node.
class NodeRecord {
 public:
  using Owners = c10::SmallVector<Ownership, 1>;

  /// False: the tools that saw this owner already see the node, through another owner.
  bool add(Ownership owner);
  bool claim_post_hook();  // true once

  Owners owners() const;

 private:
  // A leaf's node can get owners while it runs on another thread. Records share a few locks, to stay small: every node
  // that is seen has a record, and the allocator takes twice as long from 128 bytes on.
  Mutex& mutex() const;

  Owners owners_;  // inner operators before outer ones
  bool has_post_hook_ = false;
};

/// Existing ownership is kept: drops the tools that already see the node. False: no other tool is left.
bool restrict_to_new_tools(Ownership& owner, const NodeRecord::Owners& owners);

}  // namespace amanda::pytorch
