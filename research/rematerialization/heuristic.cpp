#include "rematerialization/heuristic.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rematerialization/call.h"

namespace amanda::tools::rematerialization {
namespace {

const std::vector<std::pair<std::string, Heuristic>> kHeuristics = {{"dtr", Heuristic::kDtr},
                                                                    {"dtr_local", Heuristic::kDtrLocal},
                                                                    {"msps", Heuristic::kMsps},
                                                                    {"lru", Heuristic::kLru},
                                                                    {"size", Heuristic::kSize}};

/// The calls that are reached from `start` through evicted ones; each counts once per walk.
class EvictedNeighborhood {
 public:
  explicit EvictedNeighborhood(Call& start) : start_(start), visit_(next_visit()) { start.visit = visit_; }

  /// The calls that must run again before `start` can.
  double ancestors() {
    return walk([this](Call& call) {
      for (const Operand& input : call.inputs) {
        if (input.value->call && !input.value->alive()) reach(*input.value->call);
      }
    });
  }
  /// The calls that cannot run again before `start`.
  double descendants() {
    return walk([this](Call& call) {
      for (const Call::Output& output : call.outputs) {
        const ValuePtr value = output.value.lock();
        if (!value || (&call != &start_ && value->alive())) continue;
        for (const std::weak_ptr<Call>& use : value->uses) {
          const std::shared_ptr<Call> user = use.lock();
          if (user && user->evicted()) reach(*user);
        }
      }
    });
  }

 private:
  static uint64_t next_visit() {
    static std::atomic<uint64_t> visits{0};
    return ++visits;
  }
  template <class Step>
  double walk(const Step& step) {
    double cost = 0;
    step(start_);
    while (!reached_.empty()) {
      Call& call = *reached_.back();
      reached_.pop_back();
      cost += call.cost;
      step(call);
    }
    return cost;
  }
  void reach(Call& call) {
    if (call.visit != visit_) reached_.push_back(&call);
    call.visit = visit_;
  }

  Call& start_;
  const uint64_t visit_;
  std::vector<Call*> reached_;
};

}  // namespace

Heuristic heuristic_of(std::string_view name) {
  for (const auto& [known, heuristic] : kHeuristics) {
    if (known == name) return heuristic;
  }
  throw std::invalid_argument("no such heuristic");
}

double score(Heuristic heuristic, const Value& value, uint64_t now) {
  const double size = static_cast<double>(value.bytes), staleness = static_cast<double>(now - value.last_use + 1);
  EvictedNeighborhood neighborhood(*value.call);
  switch (heuristic) {
    case Heuristic::kDtr: {
      const double around = neighborhood.ancestors() + neighborhood.descendants();
      return (value.call->cost + around) / (size * staleness);
    }
    case Heuristic::kDtrLocal: return value.call->cost / (size * staleness);
    case Heuristic::kMsps: return (value.call->cost + neighborhood.ancestors()) / size;
    case Heuristic::kLru: return 1 / staleness;
    case Heuristic::kSize: return 1 / size;
  }
  return 0;
}

}  // namespace amanda::tools::rematerialization
