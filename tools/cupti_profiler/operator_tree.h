// The tree of operators that ran inside others, and the totals of each.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "amanda/driver/backend.h"

namespace amanda::tools {

/// The part of a training step that an operator belongs to.
enum class OperatorPhase : uint8_t { kForward, kBackward, kRecompute, kOptimizer };

/// One place in the program, as analysis found it.
struct ProfiledOperator {
  std::string name{};          ///< "aten::conv2d"; of a backward operator, the autograd node's: "ConvolutionBackward0"
  std::string forward_name{};  ///< of a backward operator: "aten::conv2d"; otherwise the same as name
  std::string module_path{};   ///< the innermost module, in backward the forward operator's; "" outside modules
  std::string source{};        ///< file:line
  OperatorPhase phase = OperatorPhase::kForward;  ///< the part of a training step
  OpId id = 0;                                    ///< the forward operator's
  OpId backward_id = 0;                           ///< 0 for a forward operator

  /// Compares all fields, in order.
  auto operator<=>(const ProfiledOperator&) const = default;
};

/// The measurements of one run.
struct RunMeasures {
  int64_t inclusive_ns = 0;            ///< wall time on the host
  int64_t exclusive_ns = 0;            ///< wall time on the host, without operators inside
  int64_t allocated_bytes = 0;         ///< on the host, without operators inside
  int64_t freed_bytes = 0;             ///< on the host, without operators inside
  int64_t device_allocated_bytes = 0;  ///< without operators inside
  int64_t device_freed_bytes = 0;      ///< without operators inside
  int64_t operand_bytes = 0;           ///< read and written, if asked for
};

/// The tree of operators that ran inside others, and the totals of each. Grows with the number of distinct places, not
/// with their runs. All functions may be called on any thread.
class OperatorTree {
 public:
  /// An operator inside the operators above it.
  class Node {
   public:
    /// For OperatorTree.
    Node(uint32_t index, const Node* parent, uint32_t op, OperatorPhase phase)
        : index(index), op(op), phase(phase), parent(parent) {}

    const uint32_t index;       ///< 0 outside operators
    const uint32_t op;          ///< in operators()
    const OperatorPhase phase;  ///< the part of a training step
    const Node* const parent;   ///< null for the root

    /// Adds a run; one thread at a time, and not during reset().
    void add(const RunMeasures& run);
    /// Counts a run that threw.
    void add_failed() { failed_.fetch_add(1, std::memory_order_relaxed); }

   private:
    friend class OperatorTree;
    std::atomic<int64_t> calls_{0}, failed_{0}, inclusive_ns_{0}, exclusive_ns_{0}, allocated_{0}, freed_{0},
        device_allocated_{0}, device_freed_{0}, operand_bytes_{0};
  };

  /// The totals of a node.
  struct Totals {
    uint32_t node;        ///< Node::index
    uint32_t parent;      ///< its parent's index; the root's is its own
    uint32_t op;          ///< in operators()
    OperatorPhase phase;  ///< the part of a training step
    int64_t calls;        ///< measured runs
    int64_t failed;       ///< runs that threw; not measured
    RunMeasures sum;      ///< of all measured runs
  };

  /// Limit of the number of nodes.
  static constexpr uint32_t kMaxNodes = 1 << 24;

  /// Has only the root.
  OperatorTree();

  /// The operator's index, added on first use.
  uint32_t index_of(const ProfiledOperator& op);
  /// The node of `op` inside `parent`, added on first use. A forward operator inside a backward one is recomputed.
  /// Returns the root when there are too many nodes.
  Node& child(const Node& parent, uint32_t op);
  /// The node outside all operators.
  Node& root() { return nodes_.front(); }

  /// All operators, by index.
  std::vector<ProfiledOperator> operators() const;
  std::vector<Totals> totals() const;  ///< by index
  void reset();                        ///< sets the sums to zero; the places stay

 private:
  mutable std::shared_mutex mutex_;
  std::map<ProfiledOperator, uint32_t> indices_;
  std::vector<ProfiledOperator> operators_;
  std::unordered_map<uint64_t, Node*> children_;
  std::deque<Node> nodes_;
};

/// A run's number, which includes its node, so that no table of runs is needed.
constexpr uint64_t run_id(uint32_t node, uint64_t number) {
  return uint64_t{node} << 40 | (number & ((uint64_t{1} << 40) - 1));
}
/// The node of a run_id().
constexpr uint32_t node_of(uint64_t run_id) { return static_cast<uint32_t>(run_id >> 40); }

}  // namespace amanda::tools
