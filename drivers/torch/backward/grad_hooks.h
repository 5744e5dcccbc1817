// Hooks on autograd nodes, through which their tools see them run.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "amanda/mutex.h"
#include "backward/grad_map.h"
#include "backward/node_call.h"
#include "thread/engine_threads.h"

namespace amanda::pytorch {

/// The scopes that a backward operator on this thread is seen by; none: nobody is to see it.
CurrentScopes observing_scopes();

/// What is known of one node. Its hook objects share it and die with the node.
class NodeRecord {
 public:
  using Owners = c10::SmallVector<Ownership, 1>;

  /// False: the tools that saw this owner see the node already, for another one.
  bool add(Ownership owner);
  bool claim_post_hook();  // true once

  Owners owners() const;

 private:
  // A leaf's node can get owners while it runs on another thread. Records share a few locks: every node that is seen
  // has a record, and the allocator takes twice as long from 128 bytes on.
  Mutex& mutex() const;

  Owners owners_;  // inner operators before outer ones
  bool has_post_hook_ = false;
};

/// Attaches the hooks that the owner's tools need on the node, and returns what they need. Existing ownership is kept:
/// a leaf's node belongs to its first user, any other node to the innermost operator that the tool sees.
Engine::Interest attach_hooks(ScopeStack& scopes, Node& node, const NodeType& type, Ownership owner);
/// A backward pass that failed leaves nodes behind, on this thread, that have begun and will not end.
bool has_running_nodes();
void forget_running_nodes();

}  // namespace amanda::pytorch
