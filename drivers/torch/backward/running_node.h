// A node between its hooks: runs its owners' tools before, instead of and after it.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <list>
#include <memory>
#include <memory_resource>

#include "amanda/base/pool.h"
#include "amanda/driver/backward.h"
#include "backward/node_call.h"
#include "backward/node_record.h"
#include "backward/node_window.h"
#include "thread/engine_threads.h"
#include "thread/keys.h"

namespace amanda::pytorch {

/// Tools of outer operators are around those of inner ones, as in the forward pass. The node that an owner's
/// replacement wraps, with its inner owners, runs only if the replacement runs it.
class RunningNode : public Pooled<RunningNode>, NoCopy {
 public:
  RunningNode(CurrentScopes scopes, Node& node, const NodeType& type, const NodeRecord& record);

  variable_list begin(variable_list grad_outputs);
  bool is_replaced() const { return replaced_; }
  bool expects_end() const;
  /// Runs the replacement, in place of the node.
  variable_list operate(variable_list&& grad_outputs);
  variable_list end(variable_list grad_inputs, const variable_list& grad_outputs);

  /// With create_graph=True the node has recorded nodes itself: the owners whose tools also see those.
  c10::SmallVector<const Ownership*, 2> followers() const;
  const NodeWindow& window() const { return window_; }
  ScopeStack& scopes() const { return *scopes_; }

  /// True if it belongs to this record, and to the backward pass that this thread is in.
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
  // For the owners that have tools here. They never move: executions hold references. Most nodes have one, which is
  // stored inline: 26 ns, against 30 for a std::list.
  alignas(Part) std::byte room_[sizeof(Part) + 2 * alignof(std::max_align_t)];
  std::pmr::monotonic_buffer_resource memory_{room_, sizeof room_};
  std::pmr::list<Part> parts_{&memory_};
  bool replaced_ = false;  // by the first part of the run
  size_t inside_ = 0;      // the number of owners inside the replacement
  const int task_;
  const NodeWindow window_;
};

// The running nodes of this thread, innermost last: a node may run a backward pass of its own.

void add_running(std::unique_ptr<RunningNode> node);
/// Removes and returns the innermost one of this record, and releases those inside it. Null if there is none.
std::unique_ptr<RunningNode> take_running(const NodeRecord& record);
/// A backward pass that failed leaves nodes on this thread that have begun and will never end.
inline bool has_running_nodes() { return thread_keys().running_nodes != 0; }
void forget_running_nodes();

}  // namespace amanda::pytorch
