#include "profile/recorder.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "clock.h"

namespace amanda::tools {
namespace {

struct Start {
  int64_t ns = 0, finished_before_ns = ProfileRecorder::kAlone;
};

thread_local std::tuple<int64_t, int64_t, int64_t> declined;

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
      mutex_([](void* owner) { static_cast<ProfileRecorder*>(owner)->threads_.clear(); }, this) {}

void ProfileRecorder::start(Values& values) {
  Start& start = values.local<Start>();
  start.ns = now_ns();
}

void ProfileRecorder::start_nested(Values& values) {
  Start& start = values.local<Start>();
  {
    std::lock_guard lock(mutex_);
    const auto thread = threads_.find(this_thread());
    start.finished_before_ns = thread == threads_.end() ? 0 : thread->second.finished_ns;
  }
  start.ns = now_ns();
}

bool ProfileRecorder::stop(Values& values, Place place, OutputBytes output_bytes) {
  const int64_t stop = now_ns();  // before any access to the outputs
  const Start start = values.local<Start>();
  const std::optional<int64_t> bytes = output_bytes(values.call());
  const int64_t duration = stop - start.ns;
  if (bytes && add_on_known_thread({place, start.ns, duration, *bytes, start.finished_before_ns})) return true;
  declined = {start.ns, duration, start.finished_before_ns};
  return false;
}

std::tuple<int64_t, int64_t, int64_t> ProfileRecorder::measured() { return declined; }

bool ProfileRecorder::knows_thread() const {
  std::lock_guard lock(mutex_);
  return threads_.contains(this_thread());
}

void ProfileRecorder::name_thread(int64_t number, const std::string& name) {
  std::lock_guard lock(mutex_);
  threads_[this_thread()] = {number};
  names_.emplace(number, name);
}

void ProfileRecorder::add(const Run& run) { static_cast<void>(add_on_known_thread(run)); }

bool ProfileRecorder::add_on_known_thread(const Run& run) {
  std::lock_guard lock(mutex_);
  const auto thread = threads_.find(this_thread());
  if (thread == threads_.end()) return false;
  int64_t own_ns = run.duration_ns;
  if (run.finished_before_ns != kAlone) {
    int64_t& finished_ns = thread->second.finished_ns;
    own_ns = std::max<int64_t>(own_ns - std::max<int64_t>(finished_ns - run.finished_before_ns, 0), 0);
    finished_ns = run.finished_before_ns + run.duration_ns;
  }
  auto found = measured_.find(run.place);
  if (found == measured_.end()) {
    const Lasting memory;
    found = measured_.try_emplace(run.place).first;
    order_.push_back(run.place);
  }
  Measured& measured = found->second;
  if (measured.left_out < skip_) {
    ++measured.left_out;
    ++left_out_;
    return true;
  }
  measured.durations.add(own_ns);
  measured.output_bytes += run.output_bytes;
  if (events_.size() < max_events_) {
    events_.push_back({run, thread->second.number});
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
  threads_.clear();
  names_.clear();
}

}  // namespace amanda::tools
