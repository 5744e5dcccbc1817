// The work of the device in each operator: CUPTI's records, joined and added up.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "amanda/base/no_copy.h"
#include "cupti_profiler/correlation.h"
#include "cupti_profiler/cupti_api.h"

namespace amanda::tools {

/// All activities of one name in one node of the operator tree.
struct KernelTotals {
  uint32_t node = 0;                              ///< 0 outside operators, or if unknown
  std::string name;                               ///< mangled
  Activity::Kind kind = Activity::Kind::kKernel;  ///< the kind of work
  int64_t count = 0;                              ///< activities
  int64_t total_ns = 0;                           ///< of all
  int64_t shortest_ns = 0;                        ///< of one
  int64_t longest_ns = 0;                         ///< of one
  uint64_t bytes = 0;                             ///< copied or set
};

/// "void gemm<float>(...)"; unchanged if it is not a mangled name.
std::string demangled(const std::string& name);

/// Collects activities between start() and stop(). All functions may be called on any thread.
class KernelCollection final : private RecordSink, NoCopy {
 public:
  /// Keeps the first `max_events` activities for a trace.
  explicit KernelCollection(size_t max_events) : max_events_(max_events) {}
  ~KernelCollection();

  /// Begins to collect. Throws what CuptiApi throws.
  void start(const std::vector<std::string>& candidates);
  void flush();  ///< delivers the finished work of the device; throws `Error`
  void stop();   ///< ends the collection, even if it throws `Error`
  /// For a forked child, where CUPTI does not work: leaves the collection to the parent.
  void abandon() { collecting_ = false; }

  /// Activities that this thread launches until pop() belong to `run`. Returns false if CUPTI refused (see failure());
  /// pop() must then not be called.
  bool push(uint64_t run) noexcept;
  void pop() noexcept;  ///< ends the last push(); also after stop(), since ids stay on a thread

  /// The totals of each node, by kernel.
  std::vector<KernelTotals> totals() const;
  std::vector<Attribution> events() const;  ///< the first activities, up to the maximum
  /// The number of activities that came after the maximum.
  uint64_t dropped_events() const;
  /// The fates of the records, in all collections so far.
  Correlation::Counts correlation_counts() const;
  /// The counts of CUPTI's records, in all collections so far.
  CuptiApi::Counts cupti_counts() const;
  std::string failure() const;  ///< the first failure of a collection that continues; "" if there is none
  std::string library() const;  ///< CUPTI's file; "" until it is opened
  /// Records a failure outside this class; failure() returns the first one.
  void note(const std::string& failure);
  /// Sets everything to zero.
  void reset();

 private:
  void on(const ExternalId& id) override;
  void on(const ApiCall& call) override;
  void on(const Activity& activity) override;
  void take(const Attribution& known);

  const size_t max_events_;
  std::atomic<CuptiApi*> cupti_{nullptr};  // null until one was opened
  std::atomic<bool> collecting_{false};
  mutable std::mutex mutex_;  // of the members below
  std::unique_ptr<Correlation> correlation_ =
      std::make_unique<Correlation>([this](const Attribution& known) { take(known); });
  std::map<std::tuple<uint32_t, Activity::Kind, std::string_view>, KernelTotals> totals_;
  std::vector<Attribution> events_;
  uint64_t dropped_events_ = 0;
  CuptiApi::Counts ended_;  // of the collections before this one
  std::string failure_;
};

}  // namespace amanda::tools
