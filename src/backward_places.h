// The backward operators that one forward operator creates, kept with its plan.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "amanda/backend.h"
#include "amanda/hook_needs.h"

namespace amanda {

struct BackwardPlace {
  OpId id = 0;  // 0: not known
  HookNeeds needs;
  PlanPtr plan;

  /// Is there something to do before it, and nothing else?
  bool is_plain() const { return needs.before && !needs.replace && !needs.after && !needs.pending; }
};

/// By number: the order in which the driver binds them. They hold for one generation of plans.
struct BackwardPlaces {
  uint64_t stack, generation;
  std::vector<BackwardPlace> places;
  BackwardPlaces* older = nullptr;
};

/// The places that are known of one forward operator. Other shapes, or autocast, create other operators.
class KnownBackwardPlaces {
 public:
  KnownBackwardPlaces() = default;
  KnownBackwardPlaces(const KnownBackwardPlaces&) = delete;
  KnownBackwardPlaces& operator=(const KnownBackwardPlaces&) = delete;
  ~KnownBackwardPlaces() {
    for (BackwardPlaces* one = first_; one;) delete std::exchange(one, one->older);
  }

  /// Null: not known. Valid as long as this object.
  const BackwardPlace* find(uint64_t stack, uint64_t generation, size_t number, OpId id) const {
    for (const BackwardPlaces* one = first_.load(std::memory_order_acquire); one; one = one->older) {
      if (one->stack != stack || one->generation != generation || number >= one->places.size()) continue;
      if (one->places[number].id == id) return id == 0 ? nullptr : &one->places[number];
    }
    return nullptr;
  }

  void add(std::unique_ptr<BackwardPlaces> places) {
    constexpr size_t kMost = 4;
    BackwardPlaces* first = first_.load(std::memory_order_acquire);
    do {
      size_t count = 0;
      for (const BackwardPlaces* one = first; one; one = one->older) ++count;
      if (count == kMost) return;
      places->older = first;
    } while (!first_.compare_exchange_weak(first, places.get(), std::memory_order_acq_rel));
    places.release();
  }

 private:
  std::atomic<BackwardPlaces*> first_{nullptr};
};

}  // namespace amanda
