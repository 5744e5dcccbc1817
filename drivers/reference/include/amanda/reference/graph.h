// The graph half: a program that is written down first and run later, perhaps often.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "amanda/backend.h"
#include "amanda/reference/operator.h"

namespace amanda::reference {

class Graph {
 public:
  using Wire = size_t;  // names one value of a run
  using Wires = std::vector<Wire>;

  Wire input();
  /// Appends an operator; its results are new wires. `name` is the node's identity: unique, and chosen by the program.
  /// Throws `std::invalid_argument` for an in-place operator: a wire has one value.
  Wires add(std::string_view op, Wires inputs, const std::string& name);
  void output(Wire wire) { outputs_.push_back(wire); }

  /// Runs all nodes in order; returns the outputs.
  Operands run(Operands inputs) const;

  /// This graph with the actions of this thread's tools in it. Tools look at every node now; scopes need not be open
  /// when the new graph runs, but must live as long. This graph stays as it is.
  Graph instrumented() const;

  /// For messages and tests: "relu", "relu<" for the tap before it, "relu=" for its replacement, "relu>" after it.
  std::vector<std::string> node_names() const;

 private:
  friend class Lowering;
  struct Node {
    const Operator* op;
    std::string name;
    Wires inputs, outputs;
    PlanPtr plan;                  // of a tap; null: the operator itself
    Point point = Point::kBefore;  // a tap's
  };
  Wires new_wires(size_t count);
  static Operands run_tap(const Node& node, Operands operands);

  size_t num_wires_ = 0;
  Wires inputs_, outputs_;
  std::vector<Node> nodes_;
};

}  // namespace amanda::reference
