// What operators take and give, and how it travels through the core as a Value.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "amanda/backend.h"
#include "amanda/reference/array.h"

namespace amanda::reference {

/// A value that is not known yet: what the analysis of a graph sees.
struct Symbol {
  std::string name;
  bool operator==(const Symbol&) const = default;
};

using Operand = std::variant<Array, std::vector<Array>, double, Symbol>;
using Operands = std::vector<Operand>;
using Gradients = std::vector<std::optional<Operand>>;  // arrays; an undefined gradient is empty

/// A Value is borrowed: it stands for the operand as long as that lives.
inline Value value(const Operand& operand) { return {const_cast<Operand*>(&operand)}; }
inline const Operand& operand(Value value) { return *static_cast<const Operand*>(value.ref); }
inline const Array& array(Value value) { return std::get<Array>(operand(value)); }

const char* kind(const Operand& operand);     // "an array", for messages
uint64_t versions(const Operands& operands);  // changes when an array among them is changed in place
/// In no framework's terms. A symbol is kOther: it may stand for anything.
ValueInfo info_of(const Operand& operand);
/// The arrays among them, those in lists too.
std::vector<Array> arrays(const Operands& operands);

}  // namespace amanda::reference
