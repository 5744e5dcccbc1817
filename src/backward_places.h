// The backward operators that one forward operator creates, kept with its plan.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "amanda/base/no_copy.h"
#include "amanda/driver/backend.h"
#include "amanda/driver/hook_needs.h"

namespace amanda {

struct BackwardPlace {
  OpId id = 0;  // 0 if it is not known
  HookNeeds needs;
  PlanPtr plan;

  /// True if there is something to do before it, and nothing else.
  bool is_plain() const { return needs.before && !has_more(); }
  /// True if there is nothing to do.
  bool is_idle() const { return !needs.before && !has_more(); }

 private:
  bool has_more() const { return needs.replace || needs.after || needs.pending; }
};

/// Places by number: the order in which the driver binds the operators. They hold for one generation of plans.
struct BackwardPlaces {
  uint64_t stack, generation;
  std::vector<BackwardPlace> places;
  std::atomic<uint64_t> analyses;  // those that are pending hold as long as no analysis has run since
  BackwardPlaces* older = nullptr;

  bool is_pending() const {
    return std::any_of(places.begin(), places.end(), [](const BackwardPlace& place) { return place.needs.pending; });
  }
  /// True if this object has the same knowledge of the other's places as the other.
  bool covers(const BackwardPlaces& other) const {
    if (stack != other.stack || generation != other.generation || places.size() < other.places.size()) return false;
    for (size_t i = 0; i < other.places.size(); ++i) {
      const BackwardPlace &one = places[i], &same = other.places[i];
      if (same.id != 0 && (one.id != same.id || one.needs.pending != same.needs.pending)) return false;
    }
    return true;
  }
};

/// The places that are known of one forward operator. Other shapes, or autocast, create other operators.
class KnownBackwardPlaces : NoCopy {
 public:
  KnownBackwardPlaces() = default;
  ~KnownBackwardPlaces() {
    for (BackwardPlaces* one = first_; one;) delete std::exchange(one, one->older);
  }

  /// The place, or null if it is not known. Valid as long as this object. `analyses`: the number of analyses that have
  /// run.
  const BackwardPlace* find(uint64_t stack, uint64_t generation, uint64_t analyses, size_t number, OpId id) const {
    if (id == 0) return nullptr;
    for (const BackwardPlaces* one = first_.load(std::memory_order_acquire); one; one = one->older) {
      if (one->stack != stack || one->generation != generation || number >= one->places.size()) continue;
      const BackwardPlace& place = one->places[number];
      if (place.id != id) continue;
      if (place.needs.pending && one->analyses.load(std::memory_order_relaxed) != analyses) return nullptr;
      return &place;
    }
    return nullptr;
  }

  void add(std::unique_ptr<BackwardPlaces> places) {
    constexpr size_t kMost = 8;
    const bool pending = places->is_pending();
    BackwardPlaces* first = first_.load(std::memory_order_acquire);
    do {
      size_t count = 0;
      for (BackwardPlaces* one = first; one; one = one->older, ++count) {
        if (!pending || !one->covers(*places)) continue;
        return one->analyses.store(places->analyses.load(std::memory_order_relaxed), std::memory_order_relaxed);
      }
      if (count >= (pending ? kMost / 2 : kMost)) return;  // there must be room for the places after their analyses
      places->older = first;
    } while (!first_.compare_exchange_weak(first, places.get(), std::memory_order_acq_rel));
    (void)places.release();  // the list owns it
  }

 private:
  std::atomic<BackwardPlaces*> first_{nullptr};
};

}  // namespace amanda
