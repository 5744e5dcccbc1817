// Flops: floating point operations of every operator run, forward and backward, per operator type and module.
// Teaches: a filter that looks through composite operators, counting by shape, what a backward operator needs to know
// of its forward operator's runs, a tool that depends on another.
/// @namespace amanda::tools
/// Tools in C++.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "amanda/amanda.h"
#include "amanda/base/mutex.h"
#include "flops/flop_counts.h"
#include "flops/flops_options.h"

namespace amanda::tools {

class FlopCounter;
class UncountedGradients;

/// Counts floating point operations over any number of runs, scopes and threads. An operator that throws is not
/// counted.
class Flops : public Tool {
 public:
  /// A tool with these options; it must outlive its scopes.
  explicit Flops(FlopsOptions options = {});
  ~Flops() override;

  void on_enter(Scope& scope) override;
  void on_exit(Scope& scope, const std::exception_ptr& error) override;

  /// The same as Tool::narrow(), also for the tools that count. Throws `std::invalid_argument` if nothing is counted in
  /// these operators themselves: `linear` runs `addmm`.
  void narrow(const OpFilter& ops, const ModuleFilter& modules = {});
  /// Counts what a replacement runs, in all such tools that are open on this thread: these are not shown the operators
  /// of a routine. `kernel`: "quantized::linear_dynamic".
  static void count_in_replacement(const std::string& kernel, const std::string& module_path, int64_t flops);
  /// True if such a tool is open on this thread.
  static bool is_open();
  /// The types of operators of PyTorch that are counted, or listed as products that are not.
  static std::vector<std::string> operators();
  /// The counts; they may outlive the tool.
  const std::shared_ptr<FlopCounts>& counts() const { return counts_; }

 private:
  void list_custom_functions();
  bool counts(const std::string& kernel, const std::string& module_path) const;

  const size_t index_;  // of its flag in FlopCounter::counted_inside()
  std::shared_ptr<FlopCounts> counts_ = std::make_shared<FlopCounts>();
  std::unique_ptr<FlopCounter> counter_;
  std::unique_ptr<UncountedGradients> gradients_;
  mutable Mutex mutex_;  // guards the field below
  std::vector<std::pair<OpFilter, ModuleFilter>> narrowed_;
};

}  // namespace amanda::tools
