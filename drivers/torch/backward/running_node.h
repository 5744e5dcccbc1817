// A node between its hooks: what its owners' tools do before, in place of and after it.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <list>
#include <memory>
#include <memory_resource>

#include "amanda/backward.h"
#include "backward/node_call.h"
#include "backward/node_record.h"
#include "backward/node_window.h"
#include "thread/engine_threads.h"

namespace amanda::pytorch {

/// Tools of outer operators are around those of inner ones, as in the forward pass. What an owner's replacement wraps,
/// inner owners included, runs only if the replacement runs it.
class RunningNode {
 public:
  RunningNode(CurrentScopes scopes, Node& node, const NodeType& type, const NodeRecord& record);
  RunningNode(const RunningNode&) = delete;
  RunningNode& operator=(const RunningNode&) = delete;

  variable_list begin(variable_list grad_outputs);
  bool is_replaced() const { return replaced_; }
  bool expects_end() const;
  /// Runs the replacement, where the engine would run the node.
  variable_list operate(variable_list&& grad_outputs);
  variable_list end(variable_list grad_inputs, const variable_list& grad_outputs);

  /// With create_graph=True the node has recorded nodes of its own: the owners whose tools see those, too.
  c10::SmallVector<const Ownership*, 2> followers() const;
  const NodeWindow& window() const { return window_; }
  ScopeStack& scopes() const { return *scopes_; }

  /// Is it of this record, and of the backward pass that this thread is in?
  bool is(const NodeRecord& record) const;

 private:
  /// One owner's view of the execution.
  struct Part {
    Part(ScopeStack& scopes, Node& node, const NodeType& type, const Ownership& whose)
        : owner(whose), call(node, type, owner), run(scopes, call) {}

    const Ownership& owner;
    NodeCall call;
    BackwardRun run;
  };

  variable_list run_inside(size_t owners, variable_list&& grad_outputs);

  const CurrentScopes scopes_;
  Node& node_;
  const NodeType& type_;
  const NodeRecord& record_;
  const NodeRecord::Owners owners_;
  // Of the owners that have tools here. None moves: executions hold references. Most nodes have one, for which there is
  // room: it takes 26 ns, where a std::list takes 30.
  alignas(Part) std::byte room_[sizeof(Part) + 2 * alignof(std::max_align_t)];
  std::pmr::monotonic_buffer_resource memory_{room_, sizeof room_};
  std::pmr::list<Part> parts_{&memory_};
  bool replaced_ = false;  // by the front part
  size_t inside_ = 0;      // the owners that the replacement is around
  const int task_;
  const NodeWindow window_;
};

// Those of this thread, innermost last: a node may run a backward pass of its own.

void add_running(std::unique_ptr<RunningNode> node);
/// Takes the innermost that is of this record out, and lets go of what is inside it; null: there is none.
std::unique_ptr<RunningNode> take_running(const NodeRecord& record);
/// A backward pass that failed leaves nodes behind, on this thread, that have begun and will not end.
bool has_running_nodes();
void forget_running_nodes();

}  // namespace amanda::pytorch
