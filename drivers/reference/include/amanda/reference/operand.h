// The operands of operators, and their form as a Value in the core.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "amanda/driver/backend.h"
#include "amanda/reference/array.h"

namespace amanda::reference {

/// A value that is not known yet, as the analysis of a graph sees it.
struct Symbol {
  std::string name;  ///< its name, for messages
  /// True if the names are equal.
  bool operator==(const Symbol&) const = default;
};

/// An input or a result of an operator.
using Operand = std::variant<Array, std::vector<Array>, double, Symbol>;
/// An operator's inputs or outputs, by position.
using Operands = std::vector<Operand>;
/// Gradients by position: arrays; an undefined gradient is empty.
using Gradients = std::vector<std::optional<Operand>>;

/// The operand as a Value, borrowed: valid as long as the operand.
inline Value value(const Operand& operand) { return {const_cast<Operand*>(&operand)}; }
/// The operand of a Value of this driver, which must not be null.
inline const Operand& operand(Value value) { return *static_cast<const Operand*>(value.ref); }
/// The operand as an array. Throws `std::bad_variant_access` if it is something else.
inline const Array& array(Value value) { return std::get<Array>(operand(value)); }

const char* kind(const Operand& operand);     ///< "an array", for messages
uint64_t versions(const Operands& operands);  ///< changes when an array among them is changed in place
/// Describes the operand for Backend::describe(). A symbol is `kOther`: it may be anything.
ValueInfo info_of(const Operand& operand);
/// The arrays among them, also those in lists.
std::vector<Array> arrays(const Operands& operands);

}  // namespace amanda::reference
