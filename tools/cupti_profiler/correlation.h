// Which operator run caused what the device did: joins the records that CUPTI delivers. No CUPTI here.
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
  enum class Kind : uint8_t { kKernel, kMemcpy, kMemset };
  Kind kind = Kind::kKernel;
  uint32_t correlation_id = 0;
  uint32_t device = 0, context = 0, stream = 0;
  int64_t start_ns = 0, end_ns = 0;
  std::string_view name;  // the kernel's, mangled, or of the kind of copy; outlives the Correlation
  uint64_t bytes = 0;     // copied or set

  /// False where CUPTI could not tell the times, or had to deliver the record before the work was done.
  bool timed() const { return start_ns > 0 && end_ns >= start_ns; }
  int64_t duration_ns() const { return timed() ? end_ns - start_ns : 0; }
};

/// A call of the runtime or of the driver on the host. Times of 0: not known.
struct ApiCall {
  uint32_t correlation_id = 0;
  uint32_t thread = 0;
  int64_t start_ns = 0, end_ns = 0;
};

/// The call was made while this run was the innermost one of its thread.
struct ExternalId {
  uint32_t correlation_id = 0;
  uint64_t run = 0;
};

/// An activity with what is known of its origin.
struct Attribution {
  Activity activity;
  std::optional<uint64_t> run;  // none: outside operators, or the record that tells was lost
  std::optional<ApiCall> call;
};

/// Joins records that may come in any order, late, or never. One thread at a time.
///
/// Activities wait until the records of their call are there. What waits is bounded, and so are the calls remembered:
/// the oldest go first, counted. No activity is lost: one whose run isn't found is handed on without. External ids and
/// calls may be told twice; of activities, each record counts.
///
/// Correlation ids have 32 bits and come round. A call is told from an earlier one of the same id by its run, or by its
/// time; an activity belongs to the last call that began before it. Where a time is missing, order of arrival decides,
/// and an external id comes before its call, as CUPTI documents.
class Correlation {
 public:
  struct Limits {
    size_t calls = 1 << 18;
    size_t waiting = 1 << 16;
  };
  struct Counts {
    uint64_t activities = 0;       // handed on
    uint64_t attributed = 0;       // of these: with a run
    uint64_t outside = 0;          // the call is known and was made outside operators
    uint64_t unmatched = 0;        // neither call nor run is known
    uint64_t untimed = 0;          // of all: took no time that is known
    uint64_t calls_forgotten = 0;  // to stay within the limit, before an activity asked for them
  };
  using Sink = std::function<void(const Attribution&)>;

  explicit Correlation(Sink sink) : Correlation(std::move(sink), Limits{}) {}
  Correlation(Sink sink, Limits limits);

  void add(const ExternalId& id);
  void add(const ApiCall& call);
  void add(const Activity& activity);

  /// Hands on every waiting activity whose run is known.
  void settle();
  /// All records have come: hands on the others as well, and forgets all calls.
  void finish();

  const Counts& counts() const { return counts_; }
  void reset_counts() { counts_ = {}; }
  size_t waiting() const { return waiting_.size(); }
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
