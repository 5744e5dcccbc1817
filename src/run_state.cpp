#include "amanda/run_state.h"

namespace amanda {

RunState::~RunState() {
  for (RunSlot* slot = slots_; slot;) {
    const std::unique_ptr<RunSlot> done(slot);
    slot = done->next_;
  }
}

// A list without a lock: backward operators of one execution may run on several threads.
RunSlot& RunState::slot(const Tool& tool, const std::type_info& type, RunSlot* (*make)()) {
  auto find = [&](RunSlot* first) -> RunSlot* {
    for (RunSlot* slot = first; slot; slot = slot->next_) {
      if (slot->tool_ == &tool && *slot->type_ == type) return slot;
    }
    return nullptr;
  };
  RunSlot* first = slots_.load(std::memory_order_acquire);
  if (RunSlot* known = find(first)) return *known;
  std::unique_ptr<RunSlot> made(make());
  made->tool_ = &tool;
  made->type_ = &type;
  made->next_ = first;
  while (!slots_.compare_exchange_weak(made->next_, made.get(), std::memory_order_acq_rel)) {
    if (RunSlot* known = find(made->next_)) return *known;
  }
  return *made.release();
}

void RunState::settle(OpCall& call) {
  for (RunSlot* slot = slots_.load(std::memory_order_acquire); slot; slot = slot->next_) slot->settle(call);
}

std::optional<uint64_t> RunState::index(uint64_t scope) const {
  if (first_.scope == scope) return first_.index;
  for (const Count& count : rest_) {
    if (count.scope == scope) return count.index;
  }
  return std::nullopt;
}

void RunState::set_index(Count count) {
  if (first_.scope == 0) {
    first_ = count;
  } else {
    rest_.push_back(count);
  }
}

}  // namespace amanda
