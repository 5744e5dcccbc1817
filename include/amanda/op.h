// Operators, as tools and drivers name them: types, places, phases, and the sides of their operands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace amanda {

class Backend;  // these three are the driver's: amanda/driver/backend.h
class OpCall;
class OpSite;

/// Identifies a place in the program. 0 if the place is not identified.
using OpId = uint64_t;
/// Identifies an operator type within a driver: small consecutive numbers, one per type, for the life of the process.
using OpType = uint32_t;

/// Forward or backward.
enum class Phase : uint8_t { kForward, kBackward };
/// The point at which a routine runs.
enum class Point : uint8_t { kBefore, kReplace, kAfter };
/// The side of an operator's operands. A backward operator's inputs are the incoming gradients (grad_outputs), its
/// outputs the computed ones (grad_inputs).
enum class Side : uint8_t { kInputs, kOutputs };
/// The operands that a routine at this point works on.
constexpr Side side_of(Point point) { return point == Point::kAfter ? Side::kOutputs : Side::kInputs; }

/// Describes an operator type. The driver keeps it for the life of the process.
struct OpInfo {
  std::string ns;                    ///< namespace: "aten"
  std::string name;                  ///< "conv2d"
  std::string overload;              ///< "Tensor"; "" if there is only one
  std::vector<std::string> inputs;   ///< names of the positions
  std::vector<std::string> outputs;  ///< names of the positions; an unnamed output is ""
  std::string schema;                ///< as the framework prints it
};

/// A tool's promise about a routine when the tool schedules it: no promise; it only reads; it edits; it edits, and also
/// works on a graph's symbols.
enum class RoutineKind : uint8_t { kUnknown, kObserve, kTransform, kTraceable };

}  // namespace amanda
