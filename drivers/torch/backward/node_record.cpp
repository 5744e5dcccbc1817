#include "backward/node_record.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "amanda/driver/backward.h"

namespace amanda::pytorch {

bool restrict_to_new_tools(Ownership& owner, const NodeRecord::Owners& owners) {
  if (owners.empty()) return true;
  if (owners.back().forward->seen_by == owner.forward->seen_by) return false;
  std::vector<SubscriptionPtr> known;
  for (const Ownership& other : owners) known.push_back(other.forward->seen_by);
  SubscriptionPtr left = Backward::without(owner.forward->seen_by, known);
  if (!left) return false;
  if (left != owner.forward->seen_by) {
    auto forward = std::make_shared<ForwardRun>(*owner.forward);
    forward->seen_by = std::move(left);
    forward->plan.reset();  // it is for all of the tools
    owner.forward = std::move(forward);
  }
  return true;
}

namespace {

bool is_same(const std::weak_ptr<const Plan>& one, const std::weak_ptr<const Plan>& other) {
  return !one.owner_before(other) && !other.owner_before(one);
}

bool has_same_tools(const SubscriptionPtr& one, const SubscriptionPtr& other) {
  return one == other || (!Backward::without(one, {other}) && !Backward::without(other, {one}));
}

}  // namespace

Mutex& NodeRecord::mutex() const {
  static auto& locks = *new std::array<Mutex, 64>;  // threads may outlive static objects
  return locks[reinterpret_cast<uintptr_t>(this) / sizeof(NodeRecord) % locks.size()];
}

bool NodeRecord::add(Ownership owner) {
  // A leaf's node may live as long as the program, under DDP for instance.
  Owners over;  // destroyed outside the lock: they may hold Python objects
  std::lock_guard lock(mutex());
  const auto first_over = std::stable_partition(owners_.begin(), owners_.end(), [](const Ownership& known) {
    return !Backward::is_over(*known.forward->seen_by);
  });
  std::move(first_over, owners_.end(), std::back_inserter(over));
  owners_.erase(first_over, owners_.end());
  if (!restrict_to_new_tools(owner, owners_)) return false;
  owners_.push_back(std::move(owner));
  return true;
}

void NodeRecord::renew_run(const Owners& owners, const Ownership& user, const std::function<RunStatePtr()>& run) {
  const std::weak_ptr<RunState> never;
  for (size_t i = 0; i < owners.size(); ++i) {
    const ForwardRun& known = *owners[i].forward;
    const bool had_run = known.run.owner_before(never) || never.owner_before(known.run);
    if (!had_run || !known.run.expired() || known.id != user.forward->id) continue;
    auto forward = std::make_shared<ForwardRun>(known);
    forward->run = run();
    std::lock_guard lock(mutex());
    if (i < owners_.size() && owners_[i].forward == owners[i].forward) owners_[i].forward = std::move(forward);
  }
}

void NodeRecord::renew_plan(const Ownership& user) {
  std::shared_ptr<const ForwardRun> old;  // destroyed outside the lock: it may hold Python objects
  std::lock_guard lock(mutex());
  for (Ownership& one : owners_) {
    const ForwardRun& known = *one.forward;
    const ForwardRun& now = *user.forward;
    if (one.id != user.id || one.number != user.number || known.id != now.id || is_same(known.plan, now.plan)) continue;
    if (!has_same_tools(known.seen_by, now.seen_by)) continue;
    auto forward = std::make_shared<ForwardRun>(known);
    forward->plan = now.plan;
    old = std::exchange(one.forward, std::move(forward));
    return;
  }
}

bool NodeRecord::claim_post_hook() {
  std::lock_guard lock(mutex());
  return !std::exchange(has_post_hook_, true);
}

NodeRecord::Owners NodeRecord::owners() const {
  std::lock_guard lock(mutex());
  return owners_;
}

const Ownership* NodeRecord::shared_only_owner(std::optional<Ownership>& copy) const {
  std::lock_guard lock(mutex());
  return owners_.size() == 1 ? &copy.emplace(owners_.front()) : nullptr;
}

}  // namespace amanda::pytorch
