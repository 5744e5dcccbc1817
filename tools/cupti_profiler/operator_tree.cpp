#include "cupti_profiler/operator_tree.h"

#include <mutex>

namespace amanda::tools {
namespace {

OperatorPhase phase_inside(const OperatorTree::Node& parent, OperatorPhase phase) {
  const bool in_backward = parent.phase == OperatorPhase::kBackward || parent.phase == OperatorPhase::kRecompute;
  return phase == OperatorPhase::kForward && in_backward ? OperatorPhase::kRecompute : phase;
}

}  // namespace

void OperatorTree::Node::add(const RunMeasures& run) {
  const auto add = [](std::atomic<int64_t>& sum, int64_t value) {
    sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  };
  add(calls_, 1);
  add(inclusive_ns_, run.inclusive_ns);
  add(exclusive_ns_, run.exclusive_ns);
  add(allocated_, run.allocated_bytes);
  add(freed_, run.freed_bytes);
  add(device_allocated_, run.device_allocated_bytes);
  add(device_freed_, run.device_freed_bytes);
  add(operand_bytes_, run.operand_bytes);
}

OperatorTree::OperatorTree() {
  index_of({});
  nodes_.emplace_back(0, nullptr, 0, OperatorPhase::kForward);
}

uint32_t OperatorTree::index_of(const ProfiledOperator& op) {
  std::unique_lock lock(mutex_);
  const auto [known, added] = indices_.emplace(op, operators_.size());
  if (added) operators_.push_back(op);
  return known->second;
}

OperatorTree::Node& OperatorTree::child(const Node& parent, uint32_t op) {
  const uint64_t key = uint64_t{parent.index} << 32 | op;
  {
    std::shared_lock lock(mutex_);
    if (const auto found = children_.find(key); found != children_.end()) return *found->second;
  }
  std::unique_lock lock(mutex_);
  Node*& node = children_[key];
  if (!node) {
    if (nodes_.size() >= kMaxNodes) return *(node = &nodes_.front());
    const auto index = static_cast<uint32_t>(nodes_.size());
    node = &nodes_.emplace_back(index, &parent, op, phase_inside(parent, operators_[op].phase));
  }
  return *node;
}

std::vector<ProfiledOperator> OperatorTree::operators() const {
  std::shared_lock lock(mutex_);
  return operators_;
}

std::vector<OperatorTree::Totals> OperatorTree::totals() const {
  std::shared_lock lock(mutex_);
  std::vector<Totals> totals;
  totals.reserve(nodes_.size());
  for (const Node& node : nodes_) {
    totals.push_back({node.index,
                      node.parent ? node.parent->index : 0,
                      node.op,
                      node.phase,
                      node.calls_,
                      node.failed_,
                      {node.inclusive_ns_, node.exclusive_ns_, node.allocated_, node.freed_, node.device_allocated_,
                       node.device_freed_, node.operand_bytes_}});
  }
  return totals;
}

void OperatorTree::reset() {
  std::unique_lock lock(mutex_);
  for (Node& node : nodes_) {
    for (std::atomic<int64_t>* sum :
         {&node.calls_, &node.failed_, &node.inclusive_ns_, &node.exclusive_ns_, &node.allocated_, &node.freed_,
          &node.device_allocated_, &node.device_freed_, &node.operand_bytes_}) {
      *sum = 0;
    }
  }
}

}  // namespace amanda::tools
