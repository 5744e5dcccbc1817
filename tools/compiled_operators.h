// The operators of compiled functions that a tool leaves out.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "amanda/amanda.h"
#include "amanda/base/mutex.h"
#include "amanda/log.h"

namespace amanda::tools {

/// True if the operator is in a compiled function of PyTorch.
inline bool is_compiled(const OpContext& context) {
  return context.is_symbolic() && context.name_space().starts_with("pytorch/");
}

/// Compiled functions of PyTorch show the outermost operators, and no values while they are analyzed. On any thread.
class CompiledOperators {
 public:
  /// `leaves_out`: for the log, once: "[flops] Flops leaves out ...".
  explicit CompiledOperators(std::string leaves_out) : leaves_out_(std::move(leaves_out)) {}

  /// True if the operator is in a compiled function. Then it is noted.
  bool leaves_out(const OpContext& context) {
    if (!is_compiled(context)) return false;
    if (note(context.op_id())) {
      log_warning(leaves_out_ + ", such as " + context.op().ns + "::" + context.op().name +
                  "; compiled=\"eager\" shows them (said once)");
    }
    return true;
  }

  /// How many, at different places in the program.
  size_t count() const {
    const std::lock_guard lock(mutex_);
    return ids_.size();
  }
  void reset() {
    const std::lock_guard lock(mutex_);
    ids_.clear();
  }

 private:
  /// True if it is the first one.
  bool note(OpId id) {
    const std::lock_guard lock(mutex_);
    ids_.insert(id);
    return !std::exchange(said_, true);
  }

  const std::string leaves_out_;
  mutable Mutex mutex_;  // guards the fields below
  std::set<OpId> ids_;
  bool said_ = false;
};

}  // namespace amanda::tools
