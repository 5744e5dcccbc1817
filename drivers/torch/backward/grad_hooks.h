// Links autograd nodes to the forward operator that created them, by hooks through which its tools see them run.
#pragma once

#include <memory>

#include "amanda/driver/backward.h"
#include "backward/node_call.h"
#include "backward/node_window.h"
#include "thread/engine_threads.h"

namespace amanda::pytorch {

/// The scopes whose tools see a backward operator on this thread. Empty if no tool sees it.
CurrentScopes observing_scopes();

/// Assigns the nodes to their owner: the tools that saw it will see them. The nodes' ids are derived from `base`: the
/// forward id, or the id of the node that created them. `runs`: null if the forward operator is over. Returns whether
/// all their analyses have run.
bool bind_nodes(ScopeStack& scopes, const NodeWindow::Made& made, const std::shared_ptr<const ForwardRun>& forward,
                OpId base, bool made_by_forward, RunSource* runs);

}  // namespace amanda::pytorch
