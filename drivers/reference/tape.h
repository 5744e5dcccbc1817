// The tape, which operators record for a backward pass. Each node has a gradient rule and points at its inputs' nodes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "amanda/base/no_copy.h"
#include "amanda/driver/backend.h"
#include "amanda/reference/operator.h"

namespace amanda::reference {

struct GradientNode;

/// The destination of the gradient of an array: it is the incoming gradient `position` of the node.
struct GradientEdge {
  std::shared_ptr<GradientNode> node;  // null if it goes nowhere
  size_t position = 0;
};

/// The state of an array that is an operator's result, or a leaf.
struct GradientState {
  GradientEdge made_by;
  bool is_leaf = false;                    // that requires a gradient
  std::weak_ptr<GradientNode> accumulate;  // a leaf's node, made at its first use; it holds the leaf
  std::optional<Array> gradient;
};

/// The run of a forward operator, for the nodes that it created. It keeps no array alive.
struct ForwardRun {
  SubscriptionPtr seen_by;
  OpType type;
  OpId id;
  std::string path;
  std::vector<std::optional<Array::Weak>> inputs, outputs;  // empty if there is no array
  RunStatePtr run;
};

struct GradientNode {
  /// A forward operator that the node belongs to. A composite's inner operators own its nodes too.
  struct Owner {
    std::shared_ptr<const ForwardRun> run;
    OpId id;  // of the node, as this owner's
  };

  OpType type;
  GradientRule rule;
  std::vector<GradientEdge> next;  // of each input
  std::vector<Shape> input_shapes, output_shapes;
  uint64_t number;            // higher than that of all nodes it points at
  std::vector<Owner> owners;  // from the innermost operator outwards

  bool is_leaf() const { return type == accumulate_type(); }
  Gradients run(const Gradients& grad_outputs) const;
};

/// After an operator ran: if a gradient flows to an input, puts a node on the tape and points the results at it.
void record(const Operator& op, const Operands& inputs, Operands& results);

/// After an in-place operator: from now on gradients flow to `target` as they do to `result`.
void take_gradient(const Array& target, const Array& result);

/// `value` replaces `other`, and takes over its gradient if the shapes match.
Operand straight_through(const Operand& value, const Operand& other);

/// The nodes created on this thread while it exists.
class Watch : NoCopy {
 public:
  Watch();
  ~Watch();

  static void tell(const std::shared_ptr<GradientNode>& made);
  void bind(ForwardRun run) const;

 private:
  Watch* outer_;
  std::vector<std::shared_ptr<GradientNode>> nodes_;
};

}  // namespace amanda::reference
