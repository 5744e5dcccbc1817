// What the device did in each operator: CUPTI's records, joined and added up.
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

#include "cupti_profiler/correlation.h"
#include "cupti_profiler/cupti_api.h"

namespace amanda::tools {

/// All activities of one name in one node of the operator tree.
struct KernelTotals {
  uint32_t node = 0;  // 0: outside operators, or not known
  std::string name;   // mangled
  Activity::Kind kind = Activity::Kind::kKernel;
  int64_t count = 0, total_ns = 0, shortest_ns = 0, longest_ns = 0;
  uint64_t bytes = 0;  // copied or set
};

/// "void gemm<float>(...)"; as it is, if it isn't mangled.
std::string demangled(const std::string& name);

/// Collects while it is started. All of it may be used on any thread.
class KernelCollection final : private RecordSink {
 public:
  explicit KernelCollection(size_t max_events) : max_events_(max_events) {}
  ~KernelCollection();
  KernelCollection(const KernelCollection&) = delete;
  KernelCollection& operator=(const KernelCollection&) = delete;

  /// Throws what CuptiApi throws.
  void start(const std::vector<std::string>& candidates);
  void flush();  // throws `Error`
  void stop();   // throws `Error`; stops all the same
  /// In a forked child, where CUPTI does not work: what the parent collects is left to it.
  void abandon() { collecting_ = false; }

  /// False: CUPTI refused (see failure()), and there is nothing to pop.
  bool push(uint64_t run) noexcept;
  void pop() noexcept;  // also after stop(): ids stay on a thread

  std::vector<KernelTotals> totals() const;
  std::vector<Attribution> events() const;  // the first ones, up to the maximum
  uint64_t dropped_events() const;
  /// Over all collections so far.
  Correlation::Counts correlation_counts() const;
  CuptiApi::Counts cupti_counts() const;
  std::string failure() const;  // the first of a collection that goes on; "": none
  std::string library() const;  // "" until one was opened
  /// What went wrong outside; failure() has the first such.
  void note(const std::string& failure);
  void reset();

 private:
  void on(const ExternalId& id) override;
  void on(const ApiCall& call) override;
  void on(const Activity& activity) override;
  void take(const Attribution& known);

  const size_t max_events_;
  std::atomic<CuptiApi*> cupti_{nullptr};  // null until one was opened
  std::atomic<bool> collecting_{false};
  mutable std::mutex mutex_;  // of what follows
  std::unique_ptr<Correlation> correlation_ =
      std::make_unique<Correlation>([this](const Attribution& known) { take(known); });
  std::map<std::tuple<uint32_t, Activity::Kind, std::string_view>, KernelTotals> totals_;
  std::vector<Attribution> events_;
  uint64_t dropped_events_ = 0;
  CuptiApi::Counts ended_;  // of the collections before this one
  std::string failure_;
};

}  // namespace amanda::tools
