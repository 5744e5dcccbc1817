#include "backward/running_node.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "coverage/coverage_counter.h"

namespace amanda::pytorch {

RunningNode::RunningNode(CurrentScopes scopes, Node& node, const NodeType& type, const NodeRecord& record)
    : scopes_(std::move(scopes)),
      node_(node),
      type_(type),
      record_(record),
      owners_(record.owners()),
      task_(torch::autograd::get_current_graph_task_id()) {
  for (const Ownership& owner : owners_) {
    Part& part = parts_.emplace_back(*scopes_, node, type, owner);
    if (counts_calls()) note_shown(*scopes_, part.call, nullptr);
    if (!part.run.seen()) parts_.pop_back();
  }
}

variable_list RunningNode::begin(variable_list grad_outputs) {
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
    NodeCall::Active active(part->call);
    part->call.take(std::move(grad_outputs));
    part->run.before();
    grad_outputs = part->call.give_grad_outputs();
    if (!part->run.replaces()) continue;
    replaced_ = true;
    inside_ = &part->owner - owners_.begin();
    parts_.erase(parts_.begin(), std::prev(part.base()));
    break;
  }
  return grad_outputs;
}

bool RunningNode::expects_end() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) {
    return part.run.expects_end() || (part.run.follows() && c10::GradMode::is_enabled());
  });
}

variable_list RunningNode::operate(variable_list&& grad_outputs) {
  Part& part = parts_.front();
  NodeCall::Active active(part.call);
  part.call.take(std::move(grad_outputs));
  part.call.runs([&](variable_list&& gradients) { return run_inside(inside_, std::move(gradients)); });
  part.run.operate();
  return part.call.give_grad_inputs();
}

variable_list RunningNode::end(variable_list grad_inputs, const variable_list& grad_outputs) {
  for (Part& part : parts_) {
    NodeCall::Active active(part.call);
    part.call.take(grad_outputs);
    part.call.ran(grad_inputs);
    part.run.finish();
    grad_inputs = part.call.give_grad_inputs();
  }
  return grad_inputs;
}

c10::SmallVector<const Ownership*, 2> RunningNode::followers() const {
  c10::SmallVector<const Ownership*, 2> owners;
  if (!c10::GradMode::is_enabled()) return owners;
  for (size_t i = 0; i < inside_; ++i) {
    NodeCall site(node_, type_, owners_[i]);
    if (Backward::hook_needs(*scopes_, site).follow) owners.push_back(&owners_[i]);
  }
  for (const Part& part : parts_) {
    if (part.run.follows()) owners.push_back(&part.owner);
  }
  return owners;
}

bool RunningNode::is(const NodeRecord& record) const {
  return &record_ == &record && task_ == torch::autograd::get_current_graph_task_id();
}

// Runs the node, and around it the tools of the first `owners` owners.
variable_list RunningNode::run_inside(size_t owners, variable_list&& grad_outputs) {
  if (owners == 0) return run_node(node_, std::move(grad_outputs));
  NodeCall call(node_, type_, owners_[owners - 1]);
  call.runs([&](variable_list&& gradients) { return run_inside(owners - 1, std::move(gradients)); });
  NodeCall::Active active(call);
  call.take(std::move(grad_outputs));
  Engine::on_op(*scopes_, call);
  return call.give_grad_inputs();
}

// ---- those that run on this thread ----------------------------------------------------------------------------------

namespace {

// Nodes of a pass that failed remain here.
thread_local std::vector<std::unique_ptr<RunningNode>>* running = nullptr;
struct AtThreadsEnd {
  ~AtThreadsEnd() {
    // If it is not empty, it holds a tool's Python objects, which cannot be released any more.
    if (running->empty()) delete std::exchange(running, nullptr);
  }
};

}  // namespace

void add_running(std::unique_ptr<RunningNode> node) {
  if (!running) {
    running = new std::vector<std::unique_ptr<RunningNode>>;
    static thread_local const AtThreadsEnd freed;
  }
  running->push_back(std::move(node));
  thread_keys().running_nodes = running->size();
}

std::unique_ptr<RunningNode> take_running(const NodeRecord& record) {
  if (!running) return nullptr;
  auto found = std::find_if(running->rbegin(), running->rend(), [&](const auto& node) { return node->is(record); });
  if (found == running->rend()) return nullptr;
  std::unique_ptr<RunningNode> node = std::move(*found);
  const auto first = std::prev(found.base());
  // Released outside the list: that may run a tool's code, which may enter here again.
  const std::vector<std::unique_ptr<RunningNode>> left(std::make_move_iterator(first),
                                                       std::make_move_iterator(running->end()));
  running->erase(first, running->end());
  thread_keys().running_nodes = running->size();
  return node;
}

// Released outside the list, as above.
void forget_running_nodes() {
  thread_keys().running_nodes = 0;
  std::exchange(*running, {});
}

}  // namespace amanda::pytorch
