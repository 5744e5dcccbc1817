// Code of a tool that runs when an operator runs.
#pragma once

#include <exception>
#include <memory>
#include <string>

namespace amanda {

class Values;

/// Code that runs each time an operator runs. May be called on several threads at once.
class Routine {
 public:
  virtual ~Routine() = default;
  virtual void operator()(Values& values) = 0;
  virtual std::string name() const = 0;  // for messages
  /// May `on_error="disable"` swallow what this routine threw? (Not a keyboard interrupt.)
  virtual bool is_failure(const std::exception_ptr&) const { return true; }
  /// The scope's results are gone and this routine is never called again: release what it holds.
  virtual void retire() {}
  /// May it call Values::run()? If not, nothing is kept for it between the forward and the backward pass.
  virtual bool uses_run() const { return true; }
};
using RoutinePtr = std::shared_ptr<Routine>;

}  // namespace amanda
