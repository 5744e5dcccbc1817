#include "cupti_profiler/correlation.h"

#include <algorithm>
#include <utility>

namespace amanda::tools {
namespace {

// Device times are interpolated onto the host's clock, and may be off by this much. Ids take longer to be reused.
constexpr int64_t kClockError = 1'000'000'000;
constexpr int64_t kSoonestRound = 60'000'000'000;

// The runtime's call and the driver's call inside it have one id.
bool same_call(const ApiCall& a, const ApiCall& b) {
  return a.thread == b.thread && a.start_ns <= b.end_ns && b.start_ns <= a.end_ns;
}

}  // namespace

Correlation::Correlation(Sink sink, Limits limits) : sink_(std::move(sink)), limits_(limits) {}

template <class Fits>
Correlation::Call* Correlation::last(uint32_t correlation_id, const Fits& fits) {
  Call* found = nullptr;
  const auto [begin, end] = calls_.equal_range(correlation_id);
  for (auto call = begin; call != end; ++call) {
    if (fits(call->second) && (!found || call->second.order > found->order)) found = &call->second;
  }
  return found;
}

void Correlation::add(const ExternalId& id) {
  const auto same = [&](const Call& call) { return call.run == id.run; };
  if (last(id.correlation_id, same)) return;
  if (Call* call = last(id.correlation_id, [](const Call& known) { return !known.run; })) {
    call->run = id.run;
    call->run_came_late = true;
  } else {
    remember(id.correlation_id).run = id.run;
  }
}

void Correlation::add(const ApiCall& api) {
  const auto same = [&](const Call& call) { return call.api && same_call(*call.api, api); };
  if (Call* known = last(api.correlation_id, same)) {
    known->api->start_ns = std::min(known->api->start_ns, api.start_ns);
    known->api->end_ns = std::max(known->api->end_ns, api.end_ns);
    return;
  }
  if (Call* call = last(api.correlation_id, [](const Call& known) { return !known.api; })) {
    call->api = api;
    return;
  }
  Call& added = remember(api.correlation_id);
  added.api = api;
  // An earlier call outside operators had this id, and got the run that preceded this one.
  const auto mistaken = [](const Call& call) { return call.run_came_late && !call.asked_for; };
  if (Call* earlier = last(api.correlation_id, mistaken)) {
    added.run = std::exchange(earlier->run, std::nullopt);
    earlier->run_came_late = false;
  }
}

void Correlation::add(const Activity& activity) {
  if (waiting_.size() >= std::max<size_t>(limits_.waiting, 1)) {
    settle();
    if (waiting_.size() >= limits_.waiting) hand_on_oldest((waiting_.size() + 1) / 2);
  }
  waiting_.push_back({++order_, activity});
}

void Correlation::settle() {
  std::deque<Waiting> unsettled;
  for (const Waiting& waiting : std::exchange(waiting_, {})) {
    Call* call = cause_of(waiting);
    if (call && call->run) {
      hand_on(waiting.activity, call);
    } else {
      unsettled.push_back(waiting);
    }
  }
  waiting_ = std::move(unsettled);
}

void Correlation::finish() {
  hand_on_oldest(waiting_.size());
  calls_.clear();
  by_age_.clear();
}

Correlation::Call& Correlation::remember(uint32_t correlation_id) {
  if (calls_.size() >= std::max<size_t>(limits_.calls, 1)) {
    settle();
    for (size_t i = (by_age_.size() + 1) / 2; i > 0; --i) {
      if (!by_age_.front()->second.asked_for) ++counts_.calls_forgotten;
      calls_.erase(by_age_.front());
      by_age_.pop_front();
    }
  }
  if (by_age_.empty()) calls_.reserve(std::max<size_t>(limits_.calls, 1));
  const auto entry = calls_.emplace(correlation_id, Call{.order = ++order_, .api = {}, .run = {}});
  by_age_.push_back(entry);
  return entry->second;
}

Correlation::Call* Correlation::cause_of(const Waiting& waiting) {
  const Activity& activity = waiting.activity;
  Call *before = nullptr, *soon_after = nullptr;             // by time
  Call *arrived_before = nullptr, *arrived_after = nullptr;  // used if a time is missing
  const auto [begin, end] = calls_.equal_range(activity.correlation_id);
  for (auto entry = begin; entry != end; ++entry) {
    Call& call = entry->second;
    if (!call.api || call.api->start_ns <= 0 || activity.start_ns <= 0) {
      Call*& nearest = call.order < waiting.order ? arrived_before : arrived_after;
      if (!nearest || (call.order > nearest->order) == (call.order < waiting.order)) nearest = &call;
    } else if (call.api->start_ns <= activity.start_ns) {
      if (!before || call.api->start_ns > before->api->start_ns) before = &call;
    } else if (call.api->start_ns - activity.start_ns <= kClockError) {
      if (!soon_after || call.api->start_ns < soon_after->api->start_ns) soon_after = &call;
    }
  }
  if (before && soon_after && soon_after->api->start_ns - before->api->start_ns >= kSoonestRound) before = soon_after;
  if (before && arrived_before && arrived_before->order > before->order) return arrived_before;
  for (Call* call : {before, arrived_before, arrived_after}) {
    if (call) return call;
  }
  return soon_after;
}

void Correlation::hand_on(const Activity& activity, Call* call) {
  ++counts_.activities;
  if (!activity.timed()) ++counts_.untimed;
  Attribution known{activity, {}, {}};
  if (call) {
    call->asked_for = true;
    known.run = call->run;
    known.call = call->api;
  }
  ++(known.run ? counts_.attributed : known.call ? counts_.outside : counts_.unmatched);
  sink_(known);
}

void Correlation::hand_on_oldest(size_t count) {
  for (; count > 0; --count) {
    const Waiting oldest = waiting_.front();
    waiting_.pop_front();
    hand_on(oldest.activity, cause_of(oldest));
  }
}

}  // namespace amanda::tools
