// The functions by which a program runs operators, one at a time.
/// @namespace amanda::reference
/// The reference driver: a small runtime without a framework, to test the core and to learn from.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "amanda/driver/backend.h"
#include "amanda/reference/operand.h"

namespace amanda::reference {

/// Runs one operator, instrumented by the scopes that are open on this thread. Throws `std::invalid_argument` for an
/// unknown operator, what its kernel throws, and what a tool throws.
Operands call(std::string_view op, Operands inputs);

/// A part of the program, for as long as the object lives: `Place here("encoder");`
///
/// An operator's id is a hash of its name and of the places around it, so the same operator called again at one place
/// is the same operator. Inside a composite operator, that operator is one more place. Destroy places on the thread
/// that made them, the last one first.
class Place {
 public:
  /// Begins a place on this thread.
  explicit Place(const std::string& label);
  /// A place where operators have no identity (id 0): the core remembers nothing about them.
  static Place nowhere() { return Place(); }
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  Place();
  OpId outer_;
  bool labelled_;
};

/// Calls `listener` on this thread before each kernel, with the operator that will run; an empty function ends it.
void set_kernel_listener(std::function<void(const OpInfo&)> listener);

/// The mode in which the innermost routine on this thread runs; empty outside routines.
std::optional<RoutineMode> routine_mode();

}  // namespace amanda::reference
