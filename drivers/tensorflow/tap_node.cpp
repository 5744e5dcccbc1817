#include "tap_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "amanda/base/leaked.h"
#include "amanda/base/weak_table.h"
#include "amanda/driver/engine.h"
#include "amanda/error.h"

namespace amanda::tensorflow {
namespace {

/// A graph may be stored and loaded by another process, whose numbers are others.
int64_t next_number() {
  static std::atomic<int64_t> next{(static_cast<int64_t>(std::random_device()() & 0x7FFFFFFF) << 32) + 1};
  return next++;
}

using KnownNodes = WeakTable<const TapNode>;

TapPtr tap_with(uint64_t id) {
  if (TapPtr tap = Engine::tap(id)) return tap;
  throw Error(fmt::format("[tensorflow] there is no tap {}; its artifact must live", id));
}

const char* name_of(Side side) { return side == Side::kInputs ? "input" : "output"; }

}  // namespace

TapNode::TapNode(std::shared_ptr<const Operator> op, uint64_t tap_id, const std::vector<TensorPosition>& args,
                 const std::vector<TensorPosition>& results, Shapes shapes)
    : number_(next_number()),
      op_(std::move(op)),
      tap_(tap_with(tap_id)),
      inputs_(op_->num_inputs),
      outputs_(op_->num_outputs),
      shapes_(std::move(shapes)),
      num_args_(args.size()),
      num_tensors_(args.size()) {
  shapes_.resize(results.size());
  for (size_t i = 0; i < args.size(); ++i) put(args[i], i);
  for (const TensorPosition& result : results) {
    if (tap_->point() == Point::kReplace) put(result, num_tensors_++);
    const int tensor = tensor_at(result);
    if (result.side != side_of(tap_->point()) && tap_->point() != Point::kReplace) {
      throw Error(fmt::format("[tensorflow] a tap {} an operator returns no {}",
                              tap_->point() == Point::kBefore ? "before" : "after", name_of(result.side)));
    }
    if (tensor == Slot::kHidden) {
      throw Error(fmt::format("[tensorflow] {} {} of {} is a result of its tap, but not an argument",
                              name_of(result.side), result.position, op_->backend->info(op_->type).name));
    }
    results_.push_back(tensor);
  }
}

int TapNode::tensor_at(const TensorPosition& at) const {
  const std::vector<Slot>& slots = this->slots(at.side);
  if (at.position >= slots.size()) return Slot::kHidden;
  const std::vector<int>& tensors = slots[at.position].tensors;
  const size_t member = std::max(at.member, 0);
  return member < tensors.size() ? tensors[member] : Slot::kHidden;
}

void TapNode::put(const TensorPosition& at, size_t tensor) {
  std::vector<Slot>& slots = at.side == Side::kOutputs ? outputs_ : inputs_;
  const auto fail = [&](const char* what) {
    throw Error(fmt::format("[tensorflow] {} {} of {} {}", name_of(at.side), at.position,
                            op_->backend->info(op_->type).name, what));
  };
  if (at.position >= slots.size()) fail("does not exist");
  Slot& slot = slots[at.position];
  if (tensor_at(at) != Slot::kHidden ||
      (!slot.tensors.empty() && slot.is_list == (at.member == TensorPosition::kWhole))) {
    fail("is there twice");
  }
  slot.is_list = at.member != TensorPosition::kWhole;
  has_lists_ |= slot.is_list;
  slot.tensors.resize(std::max<size_t>(slot.tensors.size(), std::max(at.member, 0) + 1), Slot::kHidden);
  slot.tensors[std::max(at.member, 0)] = static_cast<int>(tensor);
}

bool TapNode::can_edit(Side side, size_t position) const {
  const std::vector<int>& tensors = slots(side)[position].tensors;
  return std::any_of(results_.begin(), results_.end(), [&](size_t result) {
    return std::find(tensors.begin(), tensors.end(), static_cast<int>(result)) != tensors.end();
  });
}

std::shared_ptr<const TapNode> TapNode::find(int64_t number) { return leaked<KnownNodes>().find(number); }

void TapNode::add(const std::shared_ptr<const TapNode>& node) { leaked<KnownNodes>().add(node->number(), node); }

}  // namespace amanda::tensorflow
