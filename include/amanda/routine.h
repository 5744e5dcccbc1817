// Code of a tool that runs when an operator runs.
#pragma once

#include <exception>
#include <memory>
#include <string>

namespace amanda {

class Values;

/// Code that runs each time an operator runs. It may be called on several threads at once.
class Routine {
 public:
  virtual ~Routine() = default;
  /// Runs on the thread that runs the operator. An exception reaches the program, unless the scope's `on_error`
  /// disables the tool instead.
  virtual void operator()(Values& values) = 0;
  /// The routine's name, for messages.
  virtual std::string name() const = 0;
  /// True if this exception, which the routine threw, is a failure that `on_error="disable"` handles. Return false for
  /// a keyboard interrupt.
  virtual bool is_failure(const std::exception_ptr&) const { return true; }
  /// Called when the scope's results are gone and this routine is never called again: release the objects that it
  /// holds.
  virtual void retire() {}
  /// True if the routine may call Values::run(). If not, nothing is kept for it between the forward and the backward
  /// pass.
  virtual bool uses_run() const { return true; }
};
/// A shared routine.
using RoutinePtr = std::shared_ptr<Routine>;

}  // namespace amanda
