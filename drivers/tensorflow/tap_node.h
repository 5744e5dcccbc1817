// A node of the op AmandaTap: its tap, and the operand that each tensor belongs to.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "amanda/driver/graph.h"
#include "c_api.h"
#include "graph_operator.h"

namespace amanda::tensorflow {

struct Operator : python::GraphOperator {
  size_t num_inputs, num_outputs;  // positions; of a backward operator grad_outputs and grad_inputs
};

/// A tensor of an operand: its position, and its number in a list.
struct TensorPosition {
  static constexpr int kWhole = -1;
  Side side;
  size_t position;
  int member;  // of a list; kWhole: the operand is no list
};

/// An operand. Tensors of a tap have numbers: first those that it gets, then the results of a replacement.
struct Slot {
  static constexpr int kHidden = -1;
  std::vector<int> tensors;  // one, or one for each member of a list, some perhaps hidden; empty if all are
  bool is_list = false;
};

/// The shapes of some tensors, as far as a graph knows them: sizes may be kUnknown. A shape is empty if not even the
/// number of sizes is known.
using Shapes = std::vector<std::optional<IntVector>>;

/// Immutable, but for `original`. Kernels share it: it outlives its Python object.
class TapNode {
 public:
  /// `shapes`: of the results. Throws `Error` if the tap is gone, or the positions do not fit it.
  TapNode(std::shared_ptr<const Operator> op, uint64_t tap_id, const std::vector<TensorPosition>& args,
          const std::vector<TensorPosition>& results, Shapes shapes);

  /// The node with that number. Null if there is none, or if it belongs to another process.
  static std::shared_ptr<const TapNode> find(int64_t number);
  /// Adds a node, so that find() returns it.
  static void add(const std::shared_ptr<const TapNode>& node);

  int64_t number() const { return number_; }
  const Operator& op() const { return *op_; }
  const std::shared_ptr<const Operator>& shared_op() const { return op_; }
  const Tap& tap() const { return *tap_; }
  const std::vector<Slot>& slots(Side side) const { return side == Side::kOutputs ? outputs_ : inputs_; }
  size_t num_args() const { return num_args_; }
  size_t num_tensors() const { return num_tensors_; }
  /// True if any operand is a list.
  bool has_lists() const { return has_lists_; }
  /// The tensor of each result of the node.
  const std::vector<size_t>& results() const { return results_; }
  const Shapes& shapes() const { return shapes_; }
  /// True if the tensors of this operand can be replaced.
  bool can_edit(Side side, size_t position) const;

  /// With the interpreter lock. Borrowed in the same way as GraphOperator::refuse. Null if there is none.
  mutable PyObject* original = nullptr;

 private:
  void put(const TensorPosition& at, size_t tensor);
  int tensor_at(const TensorPosition& at) const;

  const int64_t number_;
  const std::shared_ptr<const Operator> op_;
  const TapPtr tap_;
  std::vector<Slot> inputs_, outputs_;  // by position
  std::vector<size_t> results_;
  Shapes shapes_;
  size_t num_args_, num_tensors_;
  bool has_lists_ = false;
};

}  // namespace amanda::tensorflow
