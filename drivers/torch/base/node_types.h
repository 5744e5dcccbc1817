// Backward operator types: the driver's data about each class of autograd nodes, computed once.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

#include "amanda/base/mutex.h"
#include "amanda/driver/backend.h"

namespace amanda::pytorch {

struct NodeType {
  OpType type;
  OpInfo info;         // "autograd", "ConvolutionBackward0"
  uint64_t name_hash;  // the same in every process
  bool accumulates;    // AccumulateGrad: the node of a leaf
};

/// Node types and operator types share one range of numbers: node types have the high bit set.
inline constexpr OpType kNodeTypes = OpType{1} << 31;
inline bool is_node_type(OpType type) { return (type & kNodeTypes) != 0; }

class NodeTypes {
 public:
  /// Valid as long as the process.
  const NodeType& of(const torch::autograd::Node& node);
  const NodeType& of(OpType type) const;

 private:
  const NodeType& named(const std::string& name, bool accumulates);

  mutable Mutex mutex_;
  std::deque<NodeType> types_;
  std::unordered_map<std::string, const NodeType*> by_name_;
};

NodeTypes& node_types();

/// A node's name as tools know it: without PyTorch's namespace.
std::string_view plain_name(std::string_view name);

}  // namespace amanda::pytorch
