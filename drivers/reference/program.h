// A graph as the runtime stores it: nodes in the order in which they run, connected by wires.
#pragma once

#include <string>
#include <vector>

#include "amanda/driver/graph.h"
#include "amanda/reference/operator.h"

namespace amanda::reference {

using Wire = size_t;  // as Graph::Wire
using Wires = std::vector<Wire>;
inline constexpr Wire kNoWire = -1;  // an undefined gradient

/// A node's place in the program. Nodes of a body are inside the place of the loop or conditional.
struct Location {
  OpId place = 1;  // as in eager, outside all places
  std::string path{};

  Location inside(const std::string& name) const;
  OpId id_of(const Operator& op) const;  // as in eager
};

struct Program;

struct Node {
  enum class Kind : uint8_t {
    kOp,        // of the program
    kGradient,  // its backward operator
    kOnes,      // ones like the input: the gradient of the result
    kSum,       // of two gradients, each of which may be undefined
    kDefined,   // the first input, a gradient; zeros like the second if it is undefined
    kIf,
    kLoop,
  };

  Kind kind;
  std::string name{};            // of a backward operator: the name of its forward operator
  const Operator* op = nullptr;  // the same
  Wires inputs{}, outputs{};     // of a backward operator: gradients

  // Only for a backward operator:
  size_t forward = 0;                     // the node that created it
  size_t forward_number = 0;              // in an instrumented graph: the operator_number of that node
  Wires saved_inputs{}, saved_outputs{};  // of that node

  // Only for loops and conditionals:
  std::vector<std::shared_ptr<const Program>> bodies{};
  size_t times = 0;

  // Only in an instrumented graph: a node with a tap runs the tap before, after or in place of the operator.
  TapPtr tap = nullptr;
  Wires results{};             // of a tap after an operator: its results
  Location location{};         // of operators
  size_t operator_number = 0;  // the same for an operator and its taps, which are consecutive
};

/// The nodes in the order in which they run.
struct Program {
  /// Adds the node and `count` wires for its results.
  const Wires& append(Node node, size_t count);
  Wires new_wires(size_t count);

  size_t num_wires = 0;
  Wires inputs{}, outputs{};
  std::vector<Node> nodes{};
};

/// Appends the nodes of reverse mode; see Graph::gradients().
Wires append_gradients(Program& program, Wire result, const Wires& of);

}  // namespace amanda::reference
