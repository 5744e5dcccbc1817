#include "profile/recorder.h"

#include <atomic>
#include <optional>
#include <utility>

#include "clock.h"

namespace amanda::tools {
namespace {

struct Start {
  int64_t ns = 0;
};

thread_local std::pair<int64_t, int64_t> declined;

// The system uses the numbers of threads again.
uint64_t this_thread() {
  static std::atomic<uint64_t> made{0};
  thread_local const uint64_t own = ++made;
  return own;
}

}  // namespace

ProfileRecorder::ProfileRecorder(int64_t max_events, int64_t skip)
    : max_events_(static_cast<size_t>(std::max<int64_t>(max_events, 0))),
      skip_(skip),
      mutex_([](void* owner) { static_cast<ProfileRecorder*>(owner)->numbers_.clear(); }, this) {}

void ProfileRecorder::start(Values& values) {
  Start& start = values.local<Start>();
  start.ns = now_ns();
}

bool ProfileRecorder::stop(Values& values, Place place, OutputBytes output_bytes) {
  const int64_t stop = now_ns();  // before any access to the outputs
  const int64_t start = values.local<Start>().ns;
  const std::optional<int64_t> bytes = output_bytes(values.call());
  if (bytes && add_on_known_thread({place, start, stop - start, *bytes})) return true;
  declined = {start, stop - start};
  return false;
}

std::pair<int64_t, int64_t> ProfileRecorder::measured() { return declined; }

bool ProfileRecorder::knows_thread() const {
  std::lock_guard lock(mutex_);
  return numbers_.contains(this_thread());
}

void ProfileRecorder::name_thread(int64_t number, const std::string& name) {
  std::lock_guard lock(mutex_);
  numbers_[this_thread()] = number;
  names_.emplace(number, name);
}

void ProfileRecorder::add(const Run& run) { static_cast<void>(add_on_known_thread(run)); }

bool ProfileRecorder::add_on_known_thread(const Run& run) {
  std::lock_guard lock(mutex_);
  const auto thread = numbers_.find(this_thread());
  if (thread == numbers_.end()) return false;
  const auto [found, is_new] = measured_.try_emplace(run.place);
  if (is_new) order_.push_back(run.place);
  Measured& measured = found->second;
  if (measured.left_out < skip_) {
    ++measured.left_out;
    ++left_out_;
    return true;
  }
  measured.durations.add(run.duration_ns);
  measured.output_bytes += run.output_bytes;
  if (events_.size() < max_events_) {
    events_.push_back({run, thread->second});
  } else {
    ++dropped_;
  }
  return true;
}

std::vector<ProfileRecorder::Row> ProfileRecorder::rows() const {
  std::lock_guard lock(mutex_);
  std::vector<Row> rows;
  for (const Place place : order_) {
    const Measured& measured = measured_.at(place);
    if (measured.durations.count()) rows.push_back({place, measured.durations, measured.output_bytes});
  }
  return rows;
}

ProfileRecorder::Trace ProfileRecorder::trace() const {
  std::lock_guard lock(mutex_);
  return {{events_.begin(), events_.end()}, names_, dropped_};
}

int64_t ProfileRecorder::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
}

int64_t ProfileRecorder::left_out() const {
  std::lock_guard lock(mutex_);
  return left_out_;
}

void ProfileRecorder::reset() {
  std::lock_guard lock(mutex_);
  left_out_ = dropped_ = 0;
  measured_.clear();
  order_.clear();
  events_.clear();
  numbers_.clear();
  names_.clear();
}

}  // namespace amanda::tools
