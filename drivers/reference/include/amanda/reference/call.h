// How a program runs operators, one at a time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "amanda/backend.h"
#include "amanda/reference/operand.h"

namespace amanda::reference {

/// Runs one operator, instrumented by the scopes open on this thread.
Operands call(std::string_view op, Operands inputs);

/// A part of the program, for as long as the object lives: `Place here("encoder");`
///
/// An operator's id is a hash of its name and of the places around it, so the same operator called again at one place
/// is the same operator. Inside a composite operator, that operator is one more place.
class Place {
 public:
  explicit Place(const std::string& label);
  /// Here operators have no identity (id 0): the core remembers nothing of them.
  static Place nowhere() { return Place(); }
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  Place();
  OpId outer_;
  bool labelled_;
};

/// Called on this thread before each kernel, with what will run; an empty function ends it.
void set_kernel_listener(std::function<void(const OpInfo&)> listener);

/// How the innermost routine on this thread runs; empty outside routines.
std::optional<RoutineMode> routine_mode();

}  // namespace amanda::reference
