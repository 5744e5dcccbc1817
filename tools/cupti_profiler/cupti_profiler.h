// CuptiProfiler: every kernel, copy and memset of a run, with the operator, module and line that caused it; times and
// allocations of operators on the host.
// Teaches: brackets around forward and backward operators that survive exceptions, nested operators, a resource opened
// by the first scope and closed by the last.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "amanda/amanda.h"
#include "amanda/driver/probe.h"
#include "cupti_profiler/kernel_collection.h"
#include "cupti_profiler/operator_runs.h"

namespace amanda::tools {

/// Options of CuptiProfiler.
struct CuptiProfilerOptions {
  bool gpu = true;                        ///< collect kernels, if there is a GPU
  bool backward = true;                   ///< see backward operators
  bool nested = true;                     ///< see operators inside operators
  bool operand_bytes = false;             ///< add up the sizes of what operators read and write
  OpFilter ops{};                         ///< the operators to see
  size_t max_events = 1'000'000;          ///< runs, and activities, kept for a trace: the first ones
  std::vector<std::string> candidates{};  ///< where CUPTI may be
  FrameworkProbe probe{};                 ///< measures allocations; if it is empty, they are not measured
};

/// The measurements so far. May be read on any thread while operators run, and may outlive the tool.
class KernelProfile : NoCopy {
 public:
  /// For CuptiProfiler.
  explicit KernelProfile(const CuptiProfilerOptions& options);
  ~KernelProfile();

  /// Operators, and the measurements of their runs on the host.
  const std::shared_ptr<OperatorRuns>& runs() const { return runs_; }
  /// The work of the device in each operator.
  KernelCollection& kernels() { return *kernels_; }

  /// The reason why there are no kernels, in a sentence. "" if they are collected, or if no scope was entered yet.
  std::string gpu_status() const;
  /// Sentences about data that is missing in the numbers. Empty if nothing was lost.
  std::vector<std::string> notes() const;
  /// Sets everything to zero. Waits for the device: its unfinished work belongs to the measurements before. Throws
  /// `Error`.
  void reset();

 private:
  friend class CuptiProfiler;
  void enter(const CuptiProfilerOptions& options);
  std::string begin(const CuptiProfilerOptions& options);  // gpu_status()
  void exit();
  std::string end();  // what failed
  void forget_parent();
  void synchronize();
  template <class Step>
  std::string failure_of(const Step& step);
  static void warn(const std::string& failure);

  const std::shared_ptr<KernelCollection> kernels_;
  const std::shared_ptr<OperatorRuns> runs_;
  std::atomic<bool> collecting_{false};
  mutable std::mutex mutex_;  // of the members below, and of beginning and end
  int64_t entries_ = 0;
  pid_t process_ = 0;  // that entered; a forked child has no scope
  std::string gpu_status_;
};

/// Profiles any number of runs, scopes and threads. Changes nothing.
///
/// A context key "cupti_profiler.phase" with the value "optimizer", set by a tool that this one depends on, marks an
/// operator as one of the optimizer's.
class CuptiProfiler : public Tool {
 public:
  /// A tool with these options; it must outlive its scopes.
  explicit CuptiProfiler(CuptiProfilerOptions options = {});

  /// Begins to collect, with the first scope.
  void on_enter(Scope& scope) override;
  /// Ends the collection, with the last scope.
  void on_exit(Scope& scope, const std::exception_ptr& error) override;

  /// The measurements; they may outlive the tool.
  const std::shared_ptr<KernelProfile>& profile() const { return profile_; }

 private:
  void analyze(OpContext& context);

  const CuptiProfilerOptions options_;
  const std::shared_ptr<KernelProfile> profile_;
};

}  // namespace amanda::tools
