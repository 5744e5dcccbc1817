// Graphs: programs that are built first and run later, perhaps often.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "amanda/driver/graph.h"
#include "amanda/reference/operand.h"

namespace amanda::reference {

struct Program;

/// A program that is built first and run later. A handle: copies are the same graph. While one thread builds it, no
/// other may run it.
class Graph {
 public:
  /// Names one value of a run.
  using Wire = size_t;
  /// Several values of a run.
  using Wires = std::vector<Wire>;

  /// An empty graph.
  Graph();

  // Building. No other thread may run the graph meanwhile.
  /// Appends an input, and returns its wire.
  Wire input();
  /// Appends an operator; its results are new wires. `name` is the node's identity: unique, and chosen by the program.
  /// Throws `std::invalid_argument` for an in-place operator: a wire has one value.
  Wires add(std::string_view op, Wires inputs, const std::string& name);
  /// Appends a conditional: `taken` runs if the first element on `condition` is not 0, otherwise `other`. Later changes
  /// to them have no effect here.
  Wires add_if(Wire condition, Wires inputs, const Graph& taken, const Graph& other, const std::string& name);
  /// Appends a loop that runs `body` that many times; it returns as many values as it takes. Later changes to it have
  /// no effect here.
  Wires add_loop(size_t times, Wires carried, const Graph& body, const std::string& name);
  /// Makes the value of this wire the next output.
  void output(Wire wire);
  /// Appends the nodes that compute the gradients of sum(result) with respect to `of`; zeros where none flows. Throws
  /// `std::invalid_argument` if one would flow through a conditional, a loop, or an operator without a rule.
  Wires gradients(Wire result, const Wires& of);

  /// Runs all nodes in order on this thread, instrumented by the scopes that are open there; returns the outputs.
  /// Throws what a kernel or a tool throws.
  Operands run(Operands inputs) const;
  /// The graph that run() would run now. It keeps its taps when the scopes are left.
  Graph instrumented() const;
  ArtifactPtr artifact() const;  ///< the result of instrumenting it under the open scopes; null outside scopes
  ArtifactCache::Info cache_info() const;  ///< counters of its artifact cache

  /// For messages and tests: "relu", "relu<" for a tap before it, "relu=" for its replacement, "relu>" after it,
  /// "relu'" for its backward operator.
  std::vector<std::string> node_names() const;

 private:
  explicit Graph(std::shared_ptr<Program> instrumented) : program_(std::move(instrumented)) {}

  std::shared_ptr<Program> program_;
  std::shared_ptr<ArtifactCache> artifacts_;  // null if this is an instrumented graph
};

}  // namespace amanda::reference
