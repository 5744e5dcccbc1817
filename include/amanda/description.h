// Descriptions of scheduled actions, for people to read: Scope::describe(), OpContext::actions(), Action::describe().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "amanda/op.h"

namespace amanda {

/// The place of an operator, as the analysis that scheduled something on it saw it. For a backward operator: the place
/// of its forward operator.
struct OpPlace {
  std::string name_space;               ///< of the driver: "pytorch/2.13/eager"
  const OpInfo* op = nullptr;           ///< the forward operator
  OpId op_id = 0;                       ///< 0 if it is not identified
  const OpInfo* backward_op = nullptr;  ///< null if the place is a forward operator
  OpId backward_op_id = 0;              ///< 0 if the place is a forward operator, or is not identified
  std::string module_path{};            ///< "encoder.0"; "" where none is known
  std::string source{};                 ///< "train.py:12"; "" where none is known
};

/// A scheduled routine. A snapshot: it stays as it is and keeps no tool alive.
struct ActionDescription {
  std::shared_ptr<const OpPlace> place;  ///< shared by the actions of one analysis; never null
  std::string tool;                      ///< its name
  std::string routine;                   ///< its name
  Phase phase;                           ///< kBackward at a forward place: it runs at that one's backward operators
  Point point;                           ///< before or after the operator, or in its place
  /// The operands that the routine gets: by name, where the position has one, or else by number. Without a value: all
  /// operands.
  std::optional<std::vector<std::variant<int64_t, std::string>>> operands;
  bool removed = false;  ///< by Action::remove()
};

}  // namespace amanda
