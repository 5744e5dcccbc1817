// Ties autograd nodes to the forward operator that made them, by hooks through which its tools see them run.
#pragma once

#include <memory>

#include "amanda/backward.h"
#include "backward/node_call.h"
#include "backward/node_window.h"
#include "thread/engine_threads.h"

namespace amanda::pytorch {

/// The scopes that a backward operator on this thread is seen by; none: nobody is to see it.
CurrentScopes observing_scopes();

/// Gives the nodes to their owner: the tools that saw it will see them. `base`: what the nodes' ids start from; the
/// forward id, or the id of the node that made them. Returns whether no analysis of them is still to be run.
///
/// `runs`: null if the forward operator is over.
bool bind_nodes(ScopeStack& scopes, const NodeWindow::Made& made, const std::shared_ptr<const ForwardRun>& forward,
                OpId base, bool made_by_forward, RunSource* runs);

}  // namespace amanda::pytorch
