// The graph half: a program that is written down first and run later, perhaps often.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "amanda/graph.h"
#include "amanda/reference/operator.h"

namespace amanda::reference {

class Graph;
using GraphPtr = std::shared_ptr<const Graph>;

class Graph {
 public:
  using Wire = size_t;  // names one value of a run
  using Wires = std::vector<Wire>;

  Wire input();
  /// Appends an operator; its results are new wires. `name` is the node's identity: unique, and chosen by the program.
  /// Throws `std::invalid_argument` for an in-place operator: a wire has one value.
  Wires add(std::string_view op, Wires inputs, const std::string& name);
  /// `taken` if the first element on `condition` is not 0, else `other`.
  Wires add_if(Wire condition, Wires inputs, GraphPtr taken, GraphPtr other, const std::string& name);
  /// `times` times the body, which gives as many values as it takes.
  Wires add_loop(size_t times, Wires carried, GraphPtr body, const std::string& name);
  void output(Wire wire) { outputs_.push_back(wire); }
  /// Appends the nodes that compute the gradients of sum(result). Not through conditionals and loops.
  Wires gradients(Wire result, const Wires& of);

  /// Runs all nodes in order; returns the outputs. Instrumented by the scopes open on this thread.
  Operands run(Operands inputs) const;
  /// What run() would run now: a graph that runs as it is from here on, also when the scopes were left.
  Graph instrumented() const;
  Operands run_as_it_is(Operands inputs) const;

  /// For messages and tests: "relu", "relu<" for the tap before it, "relu=" for its replacement, "relu>" after it.
  std::vector<std::string> node_names() const;
  ArtifactCache::Info cache_info() const { return artifacts_->info(); }
  ArtifactPtr artifact() const;  // null outside scopes

 private:
  friend class Lowering;
  friend class GraphView;
  static constexpr Wire kNone = -1;  // an undefined gradient
  struct Node {
    enum class Kind : uint8_t { kOp, kGradient, kSum, kIf, kLoop } kind;
    const Operator* op = nullptr;  // of a gradient: the forward operator
    std::string name;              // of a gradient: the forward node's
    Wires inputs{}, outputs{};     // of a gradient: those of the results, then the forward node's inputs and outputs
    size_t forward = 0;            // of a gradient: which node
    std::vector<GraphPtr> bodies{};
    size_t times = 0;
    TapPtr tap = nullptr;
  };
  Wires new_wires(size_t count);
  Wires append(Node node, size_t outputs);

  size_t num_wires_ = 0;
  bool is_front_ = true;  // run() asks for taps
  Wires inputs_, outputs_;
  std::vector<Node> nodes_;
  std::shared_ptr<ArtifactCache> artifacts_ = std::make_shared<ArtifactCache>();
};

}  // namespace amanda::reference
