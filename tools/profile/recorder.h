// The measurements of a Profile: per operator, and run by run for the trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "amanda/action.h"
#include "amanda/base/mutex.h"
#include "amanda/base/pool.h"
#include "output_bytes.h"
#include "profile/durations.h"

namespace amanda::tools {

/// May be used on any thread.
class ProfileRecorder {
 public:
  /// An operator, as its tool numbers it.
  using Place = size_t;

  static constexpr int64_t kAlone = -1;

  /// One run.
  struct Run {
    Place place;
    int64_t start_ns, duration_ns, output_bytes;
    /// The thread's `finished_ns` at the start. kAlone if measured operators do not run inside this one.
    int64_t finished_before_ns = kAlone;
  };
  /// A run that is kept for the trace.
  struct Event {
    Run run;
    int64_t thread;
  };
  /// All runs of one operator.
  struct Row {
    Place place;
    Durations durations;
    int64_t output_bytes;
  };
  /// The kept runs in order, the threads by number, and the number of runs that were not kept.
  struct Trace {
    std::vector<Event> events;
    std::map<int64_t, std::string> threads;
    int64_t dropped;
  };

  /// Keeps the first `max_events` runs for the trace, and leaves out the first `skip` of each operator.
  ProfileRecorder(int64_t max_events, int64_t skip);

  /// A routine before the operator.
  static void start(Values& values);
  /// The same where measured operators run inside others, as forward operators do in a backward pass that recomputes
  /// them: the rows then exclude the inner ones. The trace never does.
  void start_nested(Values& values);
  /// A routine after the operator. Returns false if `measured()` is not counted yet, because the number of bytes, or
  /// this thread's name and number, are not known.
  bool stop(Values& values, Place place, OutputBytes output_bytes);
  /// The start, the duration and `finished_before_ns` of the run that stop() declined last on this thread.
  static std::tuple<int64_t, int64_t, int64_t> measured();

  /// True if the trace knows the calling thread.
  bool knows_thread() const;
  /// From now on the calling thread has this number and, if no other thread had that before, this name.
  void name_thread(int64_t number, const std::string& name);
  /// Counts a run, on a thread that is known.
  void add(const Run& run);

  /// The operators that ran, in the order in which they did first.
  std::vector<Row> rows() const;
  Trace trace() const;
  int64_t dropped() const;
  int64_t left_out() const;
  void reset();

 private:
  struct Measured {
    int64_t left_out = 0, output_bytes = 0;
    Durations durations;
  };
  struct Thread {
    int64_t number;
    int64_t finished_ns = 0;  // the time of the runs that have ended here, counting inner ones once
  };
  bool add_on_known_thread(const Run& run);

  const size_t max_events_;
  const int64_t skip_;
  mutable Mutex mutex_;  // guards the members below
  int64_t left_out_ = 0, dropped_ = 0;
  std::unordered_map<Place, Measured> measured_;
  std::vector<Place> order_;
  std::deque<Event, PoolAllocator<Event>> events_;
  std::unordered_map<uint64_t, Thread> threads_;  // by what this process calls them
  std::map<int64_t, std::string> names_;
};

}  // namespace amanda::tools
