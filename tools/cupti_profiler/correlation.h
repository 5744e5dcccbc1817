// The operator run that caused each activity of the device: joins the records that CUPTI delivers. No CUPTI here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace amanda::tools {

/// Something the device did. Several of one graph launch share a correlation id.
struct Activity {
  /// The kind of work that the device did.
  enum class Kind : uint8_t { kKernel, kMemcpy, kMemset };
  Kind kind = Kind::kKernel;    ///< the kind of work
  uint32_t correlation_id = 0;  ///< of the call that launched it
  uint32_t device = 0;          ///< CUDA's number
  uint32_t context = 0;         ///< CUPTI's number
  uint32_t stream = 0;          ///< CUPTI's number
  int64_t start_ns = 0;         ///< steady clock
  int64_t end_ns = 0;           ///< steady clock
  std::string_view name;        ///< the kernel's, mangled, or the kind of copy; outlives the Correlation
  uint64_t bytes = 0;           ///< copied or set

  /// True if the times are known. False if CUPTI could not measure them, or had to deliver the record before the work
  /// was done.
  bool timed() const { return start_ns > 0 && end_ns >= start_ns; }
  /// The duration in nanoseconds; 0 if it is not known.
  int64_t duration_ns() const { return timed() ? end_ns - start_ns : 0; }
};

/// A call of the runtime or of the driver on the host. Times are 0 if unknown.
struct ApiCall {
  uint32_t correlation_id = 0;  ///< shared with the activities that it launched
  uint32_t thread = 0;          ///< that made it
  int64_t start_ns = 0;         ///< steady clock
  int64_t end_ns = 0;           ///< steady clock
};

/// Says that a call was made while this run was the innermost one of its thread.
struct ExternalId {
  uint32_t correlation_id = 0;  ///< of the call
  uint64_t run = 0;             ///< run_id()
};

/// An activity with the known facts about its origin.
struct Attribution {
  Activity activity;            ///< the device's activity
  std::optional<uint64_t> run;  ///< empty outside operators, or if the record for it was lost
  std::optional<ApiCall> call;  ///< empty if the record was lost
};

/// Joins records that may arrive in any order, late, or never. Used by one thread at a time.
///
/// Activities wait for the records of their call. The number of waiting activities and of remembered calls is limited;
/// the oldest are dropped first, and counted. No activity is lost: one whose run is not found is passed on without.
/// External ids and calls may be reported twice; each activity record counts.
///
/// Correlation ids have 32 bits and are reused. A call is distinguished from an earlier one with the same id by its
/// run, or by its time; an activity belongs to the last call that began before it. If a time is missing, the order of
/// arrival decides, and an external id comes before its call, as CUPTI documents.
class Correlation {
 public:
  /// Limits of the remembered records.
  struct Limits {
    size_t calls = 1 << 18;    ///< calls that an activity may still refer to
    size_t waiting = 1 << 16;  ///< activities whose call is not known yet
  };
  /// The fates of the records.
  struct Counts {
    uint64_t activities = 0;       ///< passed on
    uint64_t attributed = 0;       ///< of these: with a run
    uint64_t outside = 0;          ///< the call is known and was made outside operators
    uint64_t unmatched = 0;        ///< neither call nor run is known
    uint64_t untimed = 0;          ///< of all: without a known duration
    uint64_t calls_forgotten = 0;  ///< to stay within the limit, before an activity referred to them
  };
  /// Receives activities, on the thread that adds records.
  using Sink = std::function<void(const Attribution&)>;

  /// Passes activities to `sink`, with the default limits.
  explicit Correlation(Sink sink) : Correlation(std::move(sink), Limits{}) {}
  /// Passes activities to `sink`.
  Correlation(Sink sink, Limits limits);

  /// Adds a record. Throws what the sink throws.
  void add(const ExternalId& id);
  /// Adds a record. Throws what the sink throws.
  void add(const ApiCall& call);
  /// Adds a record. Throws what the sink throws.
  void add(const Activity& activity);

  /// Passes on every waiting activity whose run is known.
  void settle();
  /// All records have arrived: passes on the other activities too, and forgets all calls.
  void finish();

  /// The counts so far.
  const Counts& counts() const { return counts_; }
  /// Sets the counts to zero.
  void reset_counts() { counts_ = {}; }
  /// The number of waiting activities.
  size_t waiting() const { return waiting_.size(); }
  /// The number of remembered calls.
  size_t calls() const { return calls_.size(); }

 private:
  struct Call {
    uint64_t order;  // of arrival
    std::optional<ApiCall> api;
    std::optional<uint64_t> run;
    bool run_came_late = false;  // after the call
    bool asked_for = false;
  };
  using Calls = std::unordered_multimap<uint32_t, Call>;

  struct Waiting {
    uint64_t order;  // of arrival
    Activity activity;
  };

  Call& remember(uint32_t correlation_id);
  template <class Fits>
  Call* last(uint32_t correlation_id, const Fits& fits);
  Call* cause_of(const Waiting& waiting);
  void hand_on(const Activity& activity, Call* call);
  void hand_on_oldest(size_t count);

  const Sink sink_;
  const Limits limits_;
  Calls calls_;  // never rehashed: see by_age_
  std::deque<Calls::iterator> by_age_;
  std::deque<Waiting> waiting_;
  uint64_t order_ = 0;
  Counts counts_;
};

}  // namespace amanda::tools
